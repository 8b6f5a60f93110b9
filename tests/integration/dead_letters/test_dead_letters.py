"""Dead letters of list and stream queues: why jobs die, and what can be done with them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypedDict

import pytest

from tests.servers import Server
from toril import (
    Envelope,
    InvalidOption,
    ListQueue,
    ListWorker,
    PermanentError,
    StreamQueue,
    StreamWorker,
    TransientError,
)
from toril.backends.dead_letters import parse_filter
from toril.commands import envelopes
from toril.errors import MissingUser, WaitingChildrenError
from toril.protocol.envelope import DeadLetter

AnyQueue = ListQueue | StreamQueue


class PlaywrightTimeout(TransientError):
    """An error that names itself in one word."""

    error_code = "playwright_timeout"


class Page(TypedDict):
    url: str


@pytest.fixture(params=[ListQueue, StreamQueue], ids=["list", "stream"])
async def queue(request: pytest.FixtureRequest, server_url: str, prefix: str) -> AsyncIterator[AnyQueue]:
    async with request.param("jobs.work", redis=server_url, prefix=prefix, env="test") as queue:
        yield queue


async def work(queue: AnyQueue, server: Server, prefix: str, handler: Any, **options: Any) -> None:
    cls: Any = ListWorker if isinstance(queue, ListQueue) else StreamWorker
    place = {"redis": server.url, "prefix": prefix, "env": "test", "backoff_delay": 0}
    async with asyncio.timeout(20), cls("jobs.work", handler, **place, **options) as worker:
        await worker.run_until_idle()


async def fail(envelope: Envelope) -> None:
    match envelope.payload["how"]:
        case "permanent":
            raise PermanentError("never")
        case "user":
            raise MissingUser("user 7 is gone")
        case "timeout":
            raise PlaywrightTimeout("Timeout 30000ms exceeded")
        case "value":
            raise InvalidOption("url", "is missing", "give one")


async def bury(queue: AnyQueue, server: Server, prefix: str, *how: str) -> list[Envelope]:
    sent = await queue.add_bulk(
        [("task", {"how": each, "n": n}) for n, each in enumerate(how)], max_attempts=2
    )
    await work(queue, server, prefix, fail, concurrency=len(how))
    return sent


async def test_a_letter_is_the_envelope_with_time_reason_and_last_error(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    (sent,) = await bury(queue, server, prefix, "timeout")
    with server.client() as client:
        ((_, fields),) = client.xrange(queue.keys.dlq)
    letter = json.loads(fields[b"envelope"])
    assert list(letter) == [
        *("job_id", "task_type", "attempts", "max_attempts", "payload", "meta"),
        *("dlq_ts", "dlq_reason", "last_error"),
    ]
    assert (letter["job_id"], letter["attempts"]) == (sent.job_id, 2)
    assert letter["meta"] == sent.meta.as_dict()
    assert letter["dlq_ts"].endswith("Z")
    assert (letter["dlq_reason"], letter["last_error"]) == ("max_attempts_exceeded", "playwright_timeout")


@pytest.mark.parametrize(
    ("how", "reason", "last_error"),
    [
        ("permanent", "permanent_error", "PermanentError: never"),
        ("user", "missing_user", "MissingUser: user 7 is gone"),
        ("value", "validation_error", "InvalidOption: url: is missing; give one"),
        ("timeout", "max_attempts_exceeded", "playwright_timeout"),
    ],
)
async def test_the_reason_follows_from_the_error(
    queue: AnyQueue, server: Server, prefix: str, how: str, reason: str, last_error: str
) -> None:
    await bury(queue, server, prefix, how)
    (letter,) = [one async for one in queue.dead_letters()]
    assert (letter.dlq_reason, letter.last_error) == (reason, last_error)


async def test_a_payload_that_does_not_fit_the_workers_model_is_a_validation_error(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    await queue.add("task", {"link": "https://example.com"})

    async def handle(envelope: Envelope) -> None:
        raise AssertionError("it must not be run")

    await work(queue, server, prefix, handle, payload=Page)
    (letter,) = [one async for one in queue.dead_letters()]
    assert letter.dlq_reason == "validation_error"
    assert "url" in letter.last_error


async def test_a_message_that_is_no_envelope_is_kept_as_it_came(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    with server.client() as client:
        if isinstance(queue, ListQueue):
            client.lpush(queue.keys.queue, b'{"hello": "world"}')
        else:
            client.xadd(queue.keys.stream, {"envelope": b'{"hello": "world"}'})
            client.xadd(queue.keys.stream, {"strange": "field"})
    await work(queue, server, prefix, fail)
    letters = [one async for one in queue.dead_letters()]
    assert {one.dlq_reason for one in letters} == {"validation_error"}
    assert letters[0].envelope.payload == {"raw": '{"hello": "world"}'}
    await queue.replay(letters[0].entry_id)
    await work(queue, server, prefix, fail)
    again = [one async for one in queue.dead_letters()]
    assert again[-1].envelope.payload == {"raw": '{"hello": "world"}'}


async def test_replaying_by_a_filter_moves_exactly_the_matching_ones_and_nothing_the_second_time(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    sent = await bury(queue, server, prefix, "permanent", "user", "permanent", "timeout")
    wanted = {one.job_id for one in sent if one.payload["how"] == "permanent"}
    assert await queue.replay(lambda letter: letter.dlq_reason == "permanent_error") == 2
    assert await queue.replay(lambda letter: letter.dlq_reason == "permanent_error") == 0
    job_timelines: dict[str, int] = {}

    async def handle(envelope: Envelope) -> None:
        job_timelines[envelope.job_id] = envelope.attempts

    await work(queue, server, prefix, handle)
    assert job_timelines == dict.fromkeys(wanted, 0)
    assert {one.dlq_reason async for one in queue.dead_letters()} == {"missing_user", "max_attempts_exceeded"}


async def test_one_letter_can_be_looked_at_and_replayed(queue: AnyQueue, server: Server, prefix: str) -> None:
    sent = await bury(queue, server, prefix, "permanent", "permanent")
    letters = [one async for one in queue.dead_letters()]
    entry_id = letters[1].entry_id
    assert entry_id is not None
    found = await queue.dead_letter(entry_id)
    assert found is not None
    assert found.job_id in {one.job_id for one in sent}
    assert [await queue.replay(entry_id), await queue.replay(entry_id)] == [1, 0]
    assert await queue.dead_letter(entry_id) is None
    assert (await queue.counts()).dead == 1


async def test_replays_at_the_same_time_move_each_letter_once(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    await bury(queue, server, prefix, *["permanent"] * 30)
    moved = await asyncio.gather(*(queue.replay() for _ in range(5)))
    assert sum(moved) == 30
    counts = await queue.counts()
    assert (counts.waiting, counts.dead) == (30, 0)
    assert (await queue.totals())["replayed"] == 30


async def test_a_replay_keeps_to_its_rate_and_limit(queue: AnyQueue, server: Server, prefix: str) -> None:
    await bury(queue, server, prefix, *["permanent"] * 12)
    began = time.monotonic()
    assert await queue.replay(rate=20, limit=10) == 10
    assert time.monotonic() - began >= 0.4
    assert (await queue.counts()).dead == 2


async def test_purging_removes_matching_dead_letters(queue: AnyQueue, server: Server, prefix: str) -> None:
    await bury(queue, server, prefix, "permanent", "user")
    assert await queue.purge(parse_filter("dlq_reason=missing_user")) == 1
    assert await queue.purge(parse_filter("dlq_reason=missing_user")) == 0
    assert await queue.purge() == 1
    assert await queue.pending() == 0


async def test_an_export_holds_every_letter_on_a_line_of_its_own(
    queue: AnyQueue, server: Server, prefix: str, tmp_path: Path
) -> None:
    await bury(queue, server, prefix, "permanent", "user", "timeout")
    target = tmp_path / "letters.jsonl"
    assert await queue.export(target) == 3
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    assert {line["dlq_reason"] for line in lines} == {
        *("permanent_error", "missing_user", "max_attempts_exceeded")
    }
    assert (await queue.counts()).dead == 3


async def test_a_letter_that_somebody_else_spoiled_can_be_seen_and_purged(
    queue: AnyQueue, server: Server
) -> None:
    with server.client() as client:
        client.xadd(queue.keys.dlq, {"envelope": "{"})
        client.xadd(queue.keys.dlq, {"other": "field"})
    letters = [one async for one in queue.dead_letters()]
    assert [one.task_type for one in letters] == ["unreadable", "unreadable"]
    assert await queue.purge() == 2


async def test_more_dead_letters_than_fit_a_page_are_all_listed(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    await bury(queue, server, prefix, *["permanent"] * 450)
    assert len({one.job_id async for one in queue.dead_letters()}) == 450


@pytest.mark.parametrize(
    ("text", "matching"),
    [
        ("dlq_reason=permanent_error", ["permanent"]),
        ("dlq_reason!=permanent_error", ["user", "timeout"]),
        ("last_error~gone", ["user"]),
        ("payload.how=timeout, task_type=task", ["timeout"]),
        ("source=nobody", []),
    ],
)
async def test_filters_can_be_written_as_text(
    queue: AnyQueue, server: Server, prefix: str, text: str, matching: list[str]
) -> None:
    await bury(queue, server, prefix, "permanent", "user", "timeout")
    found = [one.envelope.payload["how"] async for one in queue.dead_letters(parse_filter(text))]
    assert sorted(found) == sorted(matching)


@pytest.mark.parametrize("text", ["", "   ", "nonsense", "color=red", "dlq_reason"])
def test_a_filter_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="filter"):
        parse_filter(text)


async def test_a_job_that_waits_for_children_fails_because_it_can_have_none(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    async def handle(envelope: Envelope) -> None:
        raise WaitingChildrenError

    await queue.add("task")
    await work(queue, server, prefix, handle)
    (letter,) = [one async for one in queue.dead_letters()]
    assert letter.dlq_reason == "permanent_error"
    assert "children" in letter.last_error


async def test_a_message_without_attempts_left_is_not_run(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    async def handle(envelope: Envelope) -> None:
        raise AssertionError("it must not be run")

    spent = dataclasses.replace(Envelope.new("task", max_attempts=3), attempts=3)
    await queue.add(spent)
    await work(queue, server, prefix, handle)
    (letter,) = [one async for one in queue.dead_letters()]
    assert (letter.dlq_reason, letter.envelope.attempts) == ("max_attempts_exceeded", 3)


async def test_the_command_replays_exactly_the_matching_ones_and_nothing_the_second_time(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    await bury(queue, server, prefix, "permanent", "user", "permanent", "timeout")
    kind = "list" if isinstance(queue, ListQueue) else "stream"
    place = ("--redis", server.url, "--prefix", prefix, "--env", "test", "--json")
    wanted = ("--filter", "dlq_reason=permanent_error")
    command = [sys.executable, "-m", "toril.cli", "dlq", "replay", f"{kind}:jobs.work", *wanted, *place]
    moved = []
    for _ in range(2):
        run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=50)
        assert run.returncode == 0, run.stderr
        moved.append(json.loads(run.stdout)["replayed"])
    assert moved == [2, 0]
    counts = await queue.counts()
    assert (counts.waiting, counts.dead) == (2, 2)


async def test_bytes_that_are_no_text_go_back_as_they_came(
    queue: AnyQueue, server: Server, prefix: str
) -> None:
    raw = b"\xff\xfe\x00 no text"
    with server.client() as client:
        if isinstance(queue, ListQueue):
            client.lpush(queue.keys.queue, raw)
        else:
            client.xadd(queue.keys.stream, {"envelope": raw})
        await work(queue, server, prefix, fail)
        assert await queue.replay() == 1
        if isinstance(queue, ListQueue):
            assert client.lrange(queue.keys.queue, 0, -1) == [raw]
        else:
            assert client.xrevrange(queue.keys.stream, count=1)[0][1] == {b"envelope": raw}


async def test_large_dead_letters_come_in_small_pages_and_none_is_left_out(
    queue: AnyQueue, server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes, "DEAD_LETTER_PAGE_BYTES", 50_000)
    sizes = [10, 200_000, 10, 10, 40_000, 40_000, 10]
    letters = [
        DeadLetter.from_envelope(
            Envelope.new("t", {"n": n, "x": "y" * size}), "permanent_error", "never"
        ).to_bytes()
        for n, size in enumerate(sizes)
    ]
    with server.client() as client:
        for letter in letters:
            client.xadd(queue.keys.dlq, {"envelope": letter})
    first, more = await queue._transport.run(envelopes.dead_letters(queue.keys, "-", "+", 100))
    assert (len(first), more) == (3, True)  # the second step, of two, brought the large one
    seen = [letter.envelope.payload["n"] async for letter in queue.dead_letters()]
    newest = [letter.envelope.payload["n"] async for letter in queue.dead_letters(newest_first=True)]
    assert seen == list(range(len(sizes)))
    assert newest == seen[::-1]
    assert await queue.replay() == len(sizes)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), True, "5"])
async def test_a_rate_that_is_none_is_refused(queue: AnyQueue, rate: Any) -> None:
    with pytest.raises(InvalidOption, match="rate"):
        await queue.replay(rate=rate)


@pytest.mark.parametrize("limit", [-1, 1.5, True, "5"])
async def test_a_limit_that_is_none_is_refused(queue: AnyQueue, limit: Any) -> None:
    with pytest.raises(InvalidOption, match="limit"):
        await queue.purge(limit=limit)


@pytest.mark.parametrize("entry_id", ["", "-", "+", "7", "seven", "1-1-1", "1-1\n"])
async def test_what_is_no_entry_id_is_refused(queue: AnyQueue, entry_id: str) -> None:
    with pytest.raises(InvalidOption, match="entry_id"):
        await queue.dead_letter(entry_id)
    with pytest.raises(InvalidOption, match="entry_id"):
        await queue.purge(entry_id)
