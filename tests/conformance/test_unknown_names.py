"""A worker without a handler for a job's name leaves the job to others, for an hour, on every kind of queue."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from tests.conformance.kinds import Kind, client_of
from tests.waiting import until
from toril import Envelope
from toril.backends.base import FinishedJob, settle_and_fetch
from toril.protocol import outcome
from toril.protocol.outcome import Retry
from toril.protocol.refusals import Refusals
from toril.telemetry.hooks import NoMetrics

pytestmark = pytest.mark.timeout(60)


def silent(seconds: float = 20) -> asyncio.Timeout:
    return asyncio.timeout(seconds)


async def nothing(job: Any) -> None:
    """A handler of the old version."""


class Counted(NoMetrics):
    def __init__(self) -> None:
        self.of: Counter[str] = Counter()

    def increment_unknown_names(self, queue: str, count: int = 1) -> None:
        self.of["unknown"] += count

    def increment_jobs_processed(self, queue: str, status: str, count: int = 1) -> None:
        self.of[status] += count

    def observe_job_duration(self, queue: str, seconds: float) -> None:
        self.of["durations"] += 1


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def logger_of(lines: Lines) -> logging.Logger:
    made = logging.getLogger(f"test.unknown.{id(lines)}")
    made.setLevel(logging.WARNING)
    made.addHandler(lines)
    made.propagate = False
    return made


async def test_a_job_waits_for_a_worker_that_knows_its_name_and_loses_no_attempt(kind: Kind) -> None:
    seen: list[tuple[str, int]] = []
    ran = asyncio.Event()

    async def new(job: Any) -> None:
        made = job.attempts if isinstance(job, Envelope) else job.attempts_made
        seen.append((kind.payload(job)["v"], made))
        ran.set()

    await kind.add("new", {"v": "two"}, attempts=1)
    await kind.add("old", {"v": "one"}, attempts=1)
    async with silent(), kind.worker({"old": nothing}) as old:
        await old.run_until_idle()  # it does not wait for the job that it cannot do
        assert (old.processed, old.failed) == (1, 0)
    assert await kind.failed_jobs() == []
    assert await kind.unfinished() == 1
    async with silent(), kind.worker({"new": new}) as knowing:
        await ran.wait()
        await knowing.run_until_idle()
    assert seen == [("two", 0)]
    assert await kind.unfinished() == 0
    assert await kind.failed_jobs() == []


async def test_a_job_whose_name_nobody_knows_is_given_up_and_can_be_sent_again(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome, "GIVE_UP_AFTER", 0.5)  # the second refusal comes a second after the first
    failed = asyncio.Event()
    errors: list[BaseException] = []
    job_id = await kind.add("new", {"n": 1}, attempts=3)
    worker = kind.worker({"old": nothing, "older": nothing})

    def on_failed(job: Any, error: BaseException) -> None:
        errors.append(error)
        failed.set()

    worker.on("failed", on_failed)
    async with silent(), worker:
        await failed.wait()
    (failed_job,) = await kind.failed_jobs()
    assert (failed_job.job_id, failed_job.payload) == (job_id, {"n": 1})
    assert (
        "no handler for jobs named 'new'; this worker has old, older; put back 1 times" in failed_job.reason
    )
    assert "no handler for jobs named 'new'" in str(errors[0])
    assert await kind.unfinished() == 0

    monkeypatch.undo()
    await send_again(kind)
    async with silent(), kind.worker({"old": nothing}) as worker:
        await worker.run_until_idle()
    assert await kind.failed_jobs() == []  # another hour has begun
    assert await kind.unfinished() == 1


async def send_again(kind: Kind) -> None:
    if kind.name == "bullmq":
        await kind.queue.retry_jobs()
    else:
        assert await kind.queue.replay() == 1


async def test_a_worker_may_fail_such_jobs_at_once(kind: Kind) -> None:
    await kind.add("new", attempts=3)
    async with silent(), kind.worker({"old": nothing}, unknown_names="fail") as worker:
        await worker.run_until_idle()
        assert worker.failed == 1
    (failed_job,) = await kind.failed_jobs()
    assert failed_job.reason.endswith("no handler for jobs named 'new'; this worker has old")


async def test_refusals_are_counted_and_said_once_for_each_name(kind: Kind) -> None:
    lines, metrics = Lines(), Counted()
    for n in range(20):
        await kind.add("new", {"n": n})
    await kind.add("newer")
    await kind.add("old")
    worker = kind.worker({"old": nothing}, concurrency=5, logger=logger_of(lines), metrics=metrics)
    async with silent(), worker:
        await worker.run_until_idle()
    assert metrics.of["unknown"] >= 21
    assert (metrics.of["completed"], metrics.of["failed"], metrics.of["durations"]) == (1, 0, 1)
    said = [(vars(one)["event"], vars(one)["job_name"]) for one in lines.records]
    assert sorted(said) == [("Unknown job name", "new"), ("Unknown job name", "newer")]


async def test_a_tried_job_that_is_put_back_for_its_name_does_not_keep_a_worker_busy(kind: Kind) -> None:
    await kind.add("new", attempts=3)
    async with silent(), kind.manual_backend() as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        await settle_and_fetch(backend, [FinishedJob(delivery, Retry(0.0, "busy"))], 0)
    async with silent(), kind.worker({"old": nothing}) as worker:
        await worker.run_until_idle()
    assert await kind.unfinished() == 1


async def test_a_worker_that_knew_the_name_in_between_begins_the_hour_anew(kind: Kind) -> None:
    await kind.add("new", attempts=9)
    long_ago: Refusals | None = None
    async with silent(), kind.manual_backend() as backend:
        for wanted in (None, 1, 2):
            (delivery,) = await taken(backend)
            long_ago = delivery.refusals
            assert (long_ago and long_ago.count) == wanted
            refused = Refusals.one_more(long_ago, 1000)
            await settle_and_fetch(backend, [FinishedJob(delivery, outcome.UnknownName(0.0, refused))], 0)
        (delivery,) = await taken(backend)
        assert delivery.refusals == Refusals(3, 1000)
        await settle_and_fetch(backend, [FinishedJob(delivery, Retry(0.0, "known, and busy"))], 0)
        (delivery,) = await taken(backend)
        assert delivery.refusals is None
        assert delivery.attempts_made == 1
        await settle_and_fetch(backend, [FinishedJob(delivery, outcome.Completed(b"null"))], 0)


async def taken(backend: Any) -> list[Any]:
    """The job, as soon as it is due."""
    while not (found := list((await settle_and_fetch(backend, [], 1)).deliveries)):
        await asyncio.sleep(0.005)
    return found


async def test_a_note_that_cannot_be_read_is_none(kind: Kind) -> None:
    await kind.add("new")
    async with silent(), kind.manual_backend() as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        await settle_and_fetch(backend, [FinishedJob(delivery, outcome.UnknownName(0.0, Refusals(1, 1)))], 0)
        spoil_note(kind)
        (delivery,) = await taken(backend)
        assert delivery.refusals is None
        await settle_and_fetch(backend, [FinishedJob(delivery, outcome.Completed(b"null"))], 0)


def spoil_note(kind: Kind) -> None:
    with client_of(kind.url) as client:
        if kind.name == "bullmq":
            (job_id,) = client.zrange(kind.queue.keys.delayed, 0, -1)
            client.hset(kind.queue.keys.job(job_id.decode()), "toril:refusals", "1 x 1")
            return
        (text,) = client.zrange(kind.queue.keys.scheduled, 0, -1)
        client.delete(kind.queue.keys.scheduled)
        client.zadd(kind.queue.keys.scheduled, {text.replace(b'"count":1', b'"count":"1"'): 1})


async def test_jobs_that_another_worker_knows_are_left_to_it_and_wait_no_longer_each_time(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refusing is faster than working: an old worker must not keep all jobs delayed while a new one is idle."""
    ran, outcomes, pauses = asyncio.Event(), list[Any](), list[float]()

    async def run(_: Any) -> None:
        ran.set()

    async with silent(), kind.worker({"new": run}) as new, kind.worker({"old": nothing}) as old:
        await new.pause()
        runtime = old._lifecycle._runtime
        await until(lambda: "new" in runtime.backend.known_names, "the old worker knows of the new one")
        settle, pause = runtime.fetch_loop.settle, runtime.fetch_loop.pause

        def record_outcome(one: Any) -> None:
            outcomes.append(one.outcome)
            settle(one)

        def record_pause(seconds: float) -> None:
            pauses.append(seconds)
            pause(seconds)

        monkeypatch.setattr(runtime.fetch_loop, "settle", record_outcome)
        monkeypatch.setattr(runtime.fetch_loop, "pause", record_pause)
        await kind.add("new", {"v": 1}, attempts=1)
        await until(lambda: len(outcomes) >= 3, "the job was refused three times")
        assert {one.refusals.count for one in outcomes} == {1}
        assert all(one.is_known_elsewhere and 0.08 <= one.delay <= 0.12 for one in outcomes)
        assert len(pauses) == len(outcomes)
        new.resume()
        await ran.wait()
        await new.run_until_idle()


async def test_a_worker_that_stopped_is_expected_to_know_nothing_when_its_time_is_over(kind: Kind) -> None:
    async with silent(), kind.worker({"old": nothing}) as old:
        backend = old._lifecycle._runtime.backend
        async with kind.worker(nothing):
            await until(lambda: "*" in backend.known_names, "the other worker is known")
        await until(lambda: "*" not in backend.known_names, "three heartbeats have passed")
        assert backend.known_names == {"old"}


async def test_many_unknown_jobs_ahead_are_refused_once_each_and_known_ones_run_in_order(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, metrics, ran = Lines(), Counted(), list[int]()
    done = asyncio.Event()

    async def run(job: Any) -> None:
        ran.append(kind.payload(job)["n"])
        if len(ran) == 50:
            done.set()

    await asyncio.gather(*(kind.add("new", {"n": n}) for n in range(1500)))
    for n in range(50):
        await kind.add("old", {"n": n})
    worker = kind.worker({"old": run}, concurrency=10, logger=logger_of(lines), metrics=metrics)
    unfetched = 0
    async with silent(), worker:
        backend = worker._lifecycle._runtime.backend
        refuse_names = backend.refuse_names

        async def count_unfetched(*args: Any) -> Any:
            nonlocal unfetched
            refused = await refuse_names(*args)
            unfetched += refused.total
            return refused

        monkeypatch.setattr(backend, "refuse_names", count_unfetched)
        await done.wait()
        await worker.stop()
    assert unfetched > 1000  # most were never fetched
    assert ran == list(range(50))
    assert metrics.of["unknown"] >= 1500  # a job may be due again before the known ones are done
    assert [vars(one)["job_name"] for one in lines.records] == ["new"]
    assert await kind.unfinished() == 1500
    assert await kind.failed_jobs() == []
    if kind.name == "bullmq":
        jobs = await kind.queue.get_jobs(["waiting", "delayed"])
        assert sum(job.attempts_started == 0 for job in jobs) > 1000
        assert {job.attempts_made for job in jobs} == {0}
