"""Jobs of unknown names on list and stream queues are scheduled together, before they are fetched."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tests.integration.commands.conftest import NOW
from toril.commands import list_worker, stream_worker
from toril.commands.command import Command
from toril.commands.envelope_settle import FetchedEnvelope
from toril.commands.envelopes import EnvelopeKeys, EnvelopeToAdd, add_envelopes, jobs_key, scheduled
from toril.commands.list_worker import ListPickup
from toril.commands.name_refusals import EXAMINED_BYTES, RefusedNames, refuse_envelope_names
from toril.errors import TorilError
from toril.protocol.envelope import Envelope
from toril.protocol.keys import ListKeys, StreamKeys
from toril.protocol.refusals import GIVE_UP_AFTER, META_FIELD, Refusals
from toril.transport import BlockingTransport

RawCommand = Callable[..., Any]
T = TypeVar("T")


class EnvelopeDriver:
    """Adds, refuses and fetches jobs of one queue."""

    def __init__(self, transport: BlockingTransport, keys: EnvelopeKeys) -> None:
        self.transport = transport
        self.keys = keys
        self._sequence = 0
        self.fetch(1)  # creates the consumer group

    def run(self, command: Command[T]) -> T:
        return self.transport.run(command)

    def add(self, *texts: bytes) -> None:
        self._sequence += 1
        jobs = [EnvelopeToAdd(text) for text in texts]
        self.run(add_envelopes(self.keys, jobs, producer="p", sequence=self._sequence))

    def refuse(
        self, *known: str, limit: int = 100, now_ms: int = NOW, max_attempts: int | None = None
    ) -> RefusedNames:
        return self.run(
            refuse_envelope_names(
                self.keys, known, limit=limit, factor=1.0, now_ms=now_ms, max_attempts=max_attempts
            )
        )

    def fetch(self, count: int = 100) -> list[FetchedEnvelope]:
        """Fetches jobs that wait; none is due."""
        if isinstance(self.keys, ListKeys):
            pickup = ListPickup(token="t", lock_ms=30_000)
            return self.run(list_worker.settle(self.keys, [], capacity=count, pickup=pickup, now_ms=1)).jobs
        return self.run(
            stream_worker.settle(self.keys, [], consumer="c", capacity=count, max_length=None, now_ms=1)
        ).jobs

    def fetch_texts(self) -> list[bytes]:
        return [job.text for job in self.fetch()]

    def scheduled(self) -> dict[bytes, int]:
        pairs = self.run(scheduled(self.keys, 0, -1))
        return dict(pairs)


@pytest.fixture(params=["list", "stream"])
def driver(request: pytest.FixtureRequest, transport: BlockingTransport, prefix: str) -> EnvelopeDriver:
    kinds: dict[str, type[ListKeys | StreamKeys]] = {"list": ListKeys, "stream": StreamKeys}
    return EnvelopeDriver(transport, kinds[request.param]("jobs.paint", prefix))


def envelope(name: str, job_id: str, **fields: Any) -> Envelope:
    made = Envelope.new(name, fields.pop("payload", {"n": 1}), job_id=job_id, max_attempts=3)
    meta = dataclasses.replace(made.meta, **fields.pop("meta", {}))
    return dataclasses.replace(made, meta=meta, **fields)


def text(name: str, job_id: str, **fields: Any) -> bytes:
    return envelope(name, job_id, **fields).to_bytes()


def refused_text(before: bytes, now_ms: int = NOW) -> bytes:
    """The text that a worker writes that has fetched the job."""
    read = Envelope.from_bytes(before)
    refusals = Refusals.one_more(Refusals.from_meta(read.meta.extra.get(META_FIELD)), now_ms)
    return read.rewritten_with(attempts=read.attempts, note={META_FIELD: refusals.to_meta()})


def test_unknown_names_are_scheduled_and_the_others_keep_their_order(driver: EnvelopeDriver) -> None:
    names = {"a": "new", "b": "old", "c": "new", "d": "newer", "e": "old", "f": "new"}
    texts = {job_id: text(name, job_id) for job_id, name in names.items()}
    driver.add(*texts.values())
    assert driver.refuse("old", limit=5) == RefusedNames(5, {"new": 2, "newer": 1})
    assert driver.scheduled() == {refused_text(texts[one]): NOW + 1000 for one in "acd"}
    fetched = driver.fetch()
    assert [job.text for job in fetched] == [texts["b"], texts["e"], texts["f"]]
    assert [job.unsettled_deliveries for job in fetched] == [0, 0, 0]


def test_delays_double_with_every_refusal(driver: EnvelopeDriver, raw_command: RawCommand) -> None:
    driver.add(text("new", "a"))
    for count in (1, 2, 3):
        assert driver.refuse(now_ms=NOW + count).total == 1
        ((again, due),) = driver.scheduled().items()
        assert due == NOW + count + 1000 * 2 ** (count - 1)
        assert Envelope.from_bytes(again).meta.extra == {META_FIELD: {"count": count, "first_ms": NOW + 1}}
        raw_command("DEL", driver.keys.scheduled)
        driver.add(again)


FORMS = {
    "plain": text("new", "a"),
    "text outside of ASCII": text("neu ü 🎨", "a", payload={"ü": "🎨"}, meta={"user_id": "Ünal"}),
    "attempts made": text("new", "a", attempts=2),
    "fields of its own in meta": text(
        "new", "a", meta={"extra": {"tm": '{"traceparent":"00-1}"}', "n": {"m": []}}}
    ),
    "a payload with such fields": text("new", "a", payload={"a": 1, "meta": {"correlation_id": "x"}}),
    "a payload with a note": text("new", "a", payload={"a": 1, META_FIELD: {"count": 1, "first_ms": 1}}),
    "a payload with braces in a text": text("new", "a", payload={"a": '}},"meta":{'}),
    "a user id with a comma": text("new", "a", meta={"user_id": "b,c"}),
    "quotes in meta": text("new", "a", meta={"source": 'say "hello"', "correlation_id": "\\"}),
    "refused before": refused_text(text("new", "a"), NOW - 10_000),
    "refused before, with fields of its own": refused_text(
        text("new", "a", meta={"extra": {"x": {}}}), NOW - 10
    ),
    "an empty payload": text("new", "a", payload={}),
}


@pytest.mark.parametrize("before", FORMS.values(), ids=FORMS.keys())
def test_the_new_text_is_the_one_that_a_worker_would_write(driver: EnvelopeDriver, before: bytes) -> None:
    driver.add(before)
    assert driver.refuse().total == 1
    assert list(driver.scheduled()) == [refused_text(before)]
    assert driver.fetch() == []


SPENT = json.dumps({**envelope("new", "a").as_dict(), "attempts": 3}, separators=(",", ":")).encode()
STAYING = {
    "another order of fields": json.dumps(
        dict(reversed(envelope("new", "a").as_dict().items())), separators=(",", ":")
    ).encode(),
    "with spaces": json.dumps(envelope("new", "a").as_dict()).encode(),
    "fields of its own after meta": text("new", "a", extra={"z": {}}),
    "braces that hide the end of meta": text(
        "new", "a", meta={"correlation_id": "{{"}, extra={"y": "}", "z": {"a": "}"}}
    ),
    "a name with an escape": text("ne\\w", "a"),
    "no attempt left": SPENT,
    "refused for an hour": refused_text(text("new", "a"), NOW - int(GIVE_UP_AFTER * 1000)),
    "a note that cannot be read": refused_text(text("new", "a")).replace(b'"count":1', b'"count":"1"'),
    "no meta": b'{"job_id":"a","task_type":"new","attempts":0,"max_attempts":3,"payload":{}}',
    "a meta without a time": text("new", "a").replace(b'"enqueue_ts"', b'"time"'),
    "cut": text("new", "a")[:-1],
    "no envelope": b"hello",
    "a known name": text("old", "a"),
}


@pytest.mark.parametrize("before", STAYING.values(), ids=STAYING.keys())
def test_what_a_fetch_must_decide_stays(driver: EnvelopeDriver, before: bytes) -> None:
    driver.add(before, text("new", "z"))
    assert driver.refuse("old") == RefusedNames(2, {"new": 1})
    assert driver.fetch_texts() == [before]


def test_the_attempts_of_a_worker_replace_those_of_the_jobs(driver: EnvelopeDriver) -> None:
    tried, fresh = text("new", "a", attempts=2), text("new", "b", attempts=1)
    driver.add(tried, fresh)
    assert driver.refuse(max_attempts=2).total == 1
    assert driver.fetch_texts() == [tried]


def test_a_job_of_a_dead_worker_stays_in_the_list(
    transport: BlockingTransport, prefix: str, raw_command: RawCommand
) -> None:
    driver = EnvelopeDriver(transport, ListKeys("jobs.paint", prefix))
    texts = [text("new", "a"), text("new", "b")]
    driver.add(*texts)
    raw_command("HSET", driver.keys.toril("stalls"), "a", 1)
    assert driver.refuse().total == 1
    (job,) = driver.fetch()
    assert (job.text, job.unsettled_deliveries) == (texts[0], 1)


def test_copies_of_a_job_are_not_merged(driver: EnvelopeDriver) -> None:
    copy = text("new", "a")
    driver.add(copy, copy, text("new", "b"), copy)
    assert driver.refuse(limit=3).total == 2
    assert driver.refuse().total == 0  # in the same millisecond
    assert len(driver.scheduled()) == 2
    assert driver.refuse(now_ms=NOW + 1).total == 1
    assert len(driver.scheduled()) == 3
    assert driver.fetch_texts() == [copy]


def test_names_that_live_workers_have_announced_are_left_to_them(
    driver: EnvelopeDriver, raw_command: RawCommand
) -> None:
    driver.add(text("new", "a"), text("gone", "b"))
    names = driver.keys.toril("names")
    raw_command("ZADD", names, NOW + 1, "new", NOW - 1, "gone")
    assert driver.refuse() == RefusedNames(2, {"gone": 1})
    raw_command("ZADD", names, NOW + 1, "*")
    assert driver.refuse() == RefusedNames(0, {})
    assert [Envelope.from_bytes(one).job_id for one in driver.fetch_texts()] == ["a"]


def test_a_sorted_set_of_another_type_loses_no_job(driver: EnvelopeDriver, raw_command: RawCommand) -> None:
    driver.add(text("new", "a"))
    raw_command("SET", driver.keys.scheduled, "text")
    with pytest.raises(TorilError, match="WRONGTYPE"):
        driver.refuse()
    raw_command("DEL", driver.keys.scheduled)
    assert len(driver.fetch()) == 1


def test_a_server_without_memory_loses_no_job(driver: EnvelopeDriver, raw_command: RawCommand) -> None:
    driver.add(text("old", "a"), text("new", "b"))
    raw_command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(TorilError, match="maxmemory"):
            driver.refuse("old")
    finally:
        raw_command("CONFIG", "SET", "maxmemory", 0)
    assert driver.refuse("old").total == 1
    assert [Envelope.from_bytes(one).job_id for one in driver.fetch_texts()] == ["a"]


def test_a_call_examines_a_bounded_number_of_bytes(driver: EnvelopeDriver) -> None:
    size = EXAMINED_BYTES // 4
    for n in range(12):
        driver.add(text("new", str(n), payload={"text": "x" * size}))
    first = driver.refuse()
    assert 4 <= first.examined == first.total <= 8
    assert driver.refuse().total + first.total <= 12


def test_a_queue_that_does_not_exist_is_left_so(driver: EnvelopeDriver, raw_command: RawCommand) -> None:
    raw_command("DEL", jobs_key(driver.keys))
    assert driver.refuse() == RefusedNames(0, {})
    assert raw_command("EXISTS", jobs_key(driver.keys), driver.keys.scheduled) == 0


def test_random_mixtures_leave_what_single_refusals_would_leave(driver: EnvelopeDriver) -> None:
    rng = random.Random(20_251)
    for now in range(NOW, NOW + 20):
        jobs = [(rng.choice(["old", "new", "newer"]), f"{now}-{n}") for n in range(rng.randrange(1, 40))]
        texts = [text(*job) for job in jobs]
        driver.add(*texts)
        limit, before = rng.randrange(1, 50), driver.scheduled()
        refused = [one for one, (name, _) in zip(texts, jobs, strict=True) if name != "old"]
        chosen = [one for one in refused if texts.index(one) < limit]
        assert driver.refuse("old", limit=limit, now_ms=now).total == len(chosen)
        assert driver.scheduled() == before | {refused_text(one, now): now + 1000 for one in chosen}
        assert driver.fetch_texts() == [one for one in texts if one not in chosen]


def test_the_counts_of_a_stream_stay_exact(transport: BlockingTransport, prefix: str) -> None:
    keys = StreamKeys("jobs.paint", prefix)
    driver = EnvelopeDriver(transport, keys)
    names = ["new", "old", "new", "old", "old", "new", "old"]
    driver.add(*(text(name, str(n)) for n, name in enumerate(names)))
    assert driver.refuse("old").total == 3
    counts = transport.run(stream_worker.counts(keys))
    assert (counts.waiting, counts.pending, counts.scheduled, counts.length) == (4, 0, 3, 7)
    assert driver.refuse("old", limit=3) == RefusedNames(
        0, {}
    )  # three that were given back are examined already
    assert len(driver.fetch()) == 4
    counts = transport.run(stream_worker.counts(keys))
    assert (counts.waiting, counts.pending) == (0, 4)
