"""Poison: a job whose hash is broken ends by itself, and holds up no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.faults.conftest import QUEUE
from tests.servers import Server
from toril import Job, Queue, Worker
from toril.commands import locks
from toril.commands.command import plain
from toril.errors import PermanentError, TransientError, WaitingChildrenError
from toril.protocol.state import JobState
from toril.transport import AsyncTransport

FINAL = (JobState.COMPLETED, JobState.FAILED)

# What a hash can hold that no sane client writes.
POISON: dict[str, dict[str, str]] = {
    "data is not JSON": {"data": "{"},
    "data is missing a bracket, options too": {"data": "[1,", "opts": "{"},
    "opts is not JSON": {"opts": "{{"},
    "opts is a list": {"opts": "[1, 2]"},
    "opts is a number": {"opts": "7"},
    "opts is deep": {"opts": "[" * 2000 + "]" * 2000},
    "attempts is a word": {"opts": '{"attempts": "many"}'},
    "attempts is huge": {"opts": '{"attempts": 1e300}'},
    "attempts is negative": {"opts": '{"attempts": -5}'},
    "backoff is a word": {"opts": '{"attempts": 3, "backoff": "soon"}'},
    "backoff is a list": {"opts": '{"attempts": 3, "backoff": [1]}'},
    "backoff delay is a word": {"opts": '{"attempts": 3, "backoff": {"type": "fixed", "delay": "x"}}'},
    "backoff is negative": {"opts": '{"attempts": 3, "backoff": {"type": "fixed", "delay": -5}}'},
    "removal is a word": {"opts": '{"removeOnComplete": "yes", "removeOnFail": "yes"}'},
    "removal is a list": {"opts": '{"removeOnComplete": [1], "removeOnFail": [1]}'},
    "removal age is a word": {"opts": '{"removeOnComplete": {"age": "x"}, "removeOnFail": {"age": "x"}}'},
    "removal count is a list": {"opts": '{"removeOnComplete": {"count": []}, "removeOnFail": {"count": []}}'},
    "removal is fractional": {"opts": '{"removeOnComplete": 100.5, "removeOnFail": 100.5}'},
    "stack trace limit is odd": {"opts": '{"stackTraceLimit": 1e300}'},
    "lifo is a list": {"opts": '{"lifo": [1], "attempts": 2}'},
    "attempts made is a word": {"atm": "often"},
    "attempts made is a fraction": {"atm": "1.5"},
    "legacy attempts made is a word": {"attemptsMade": "often"},
    "starts is a word": {"ats": "often"},
    "stack trace is not JSON": {"stacktrace": "oh["},
    "stack trace is an object": {"stacktrace": '{"a": 1}'},
    "parent is not JSON": {"parent": "{"},
    "parent is a list": {"parent": "[]", "parentKey": "nowhere"},
    "timestamp is a word": {"timestamp": "yesterday"},
    "delay is a word": {"delay": "later"},
    "priority is a word": {"priority": "high"},
    "progress is not JSON": {"progress": "{"},
    "series without options": {"rjk": "nightly"},
    "series with a bad pattern": {
        "rjk": "nightly",
        "opts": '{"repeat": {"pattern": "61 * * * *", "count": "x"}}',
    },
    "series with a bad end": {
        "rjk": "nightly",
        "opts": '{"repeat": {"pattern": "* * * * *", "endDate": "never"}}',
    },
    "series in no zone": {"rjk": "nightly", "opts": '{"repeat": {"pattern": "* * * * *", "tz": "Mars"}}'},
    "series of words": {"rjk": "nightly", "opts": '{"repeat": {"every": "often"}, "prevMillis": "x"}'},
    "trace is an object": {"opts": '{"tm": {"a": 1}}'},
    "name is no text": {"name": "\udcff\udcfe"},
    "deduplication id": {"deid": "gone"},
    "deferred failure": {"defa": "it was decided"},
}


async def poison(transport: AsyncTransport, queue: Queue, job_id: str, fields: dict[str, str]) -> None:
    for field, value in fields.items():
        raw = value.encode("utf-8", "surrogateescape")
        await transport.run(plain(int, "HSET", queue.keys.job(job_id), field, raw))


async def end(queue: Queue, ids: list[str], within: float = 10.0) -> dict[str, JobState]:
    """The final states of jobs; those that have none in time are what the test is about."""
    states: dict[str, JobState] = {}
    async with asyncio.timeout(within):
        while len(states) < len(ids):
            for job_id in ids:
                state = await queue.get_job_state(job_id)
                if state in FINAL or state is JobState.UNKNOWN:
                    states[job_id] = state
            await asyncio.sleep(0.02)
    return states


@pytest.mark.parametrize("what", POISON)
async def test_a_poisoned_job_ends_and_its_neighbours_are_not_delayed(
    under_attack: Queue, behind: AsyncTransport, valkey: Server, prefix: str, what: str
) -> None:
    async def handle(job: Job[Any]) -> str:
        if job.data == {"ending": "fails"}:
            raise PermanentError("no")
        if job.data == {"ending": "retries"} and job.attempts_started < 2:
            raise TransientError("again")
        return "done"

    queue = under_attack
    await queue.pause()
    first = await queue.add("n", {}, attempts=1)
    sick = [
        await queue.add("n", {"ending": ending}, attempts=1) for ending in ("returns", "fails", "retries")
    ]
    last = await queue.add("n", {}, attempts=1)
    for job in sick:
        await poison(behind, queue, job.id, POISON[what])
    await queue.resume()
    async with Worker(
        QUEUE,
        handle,
        redis=valkey.url,
        prefix=prefix,
        concurrency=3,
        lock_duration=1,
        stalled_check_interval=1,
        shutdown_timeout=1,
    ) as worker:
        healthy = await end(queue, [first.id, last.id], 5)
        assert JobState.UNKNOWN not in healthy.values()
        await end(queue, [job.id for job in sick])
        sound = await queue.add("n", {}, attempts=2, backoff=0.01)
        await end(queue, [sound.id], 5)
        assert worker.health().jobs == 0


async def test_a_job_that_cannot_wait_for_its_children_holds_up_no_other(
    under_attack: Queue, behind: AsyncTransport, valkey: Server, prefix: str
) -> None:
    """Its lock is gone when it asks to wait: that is its own trouble."""

    async def handle(job: Job[Any]) -> str:
        if job.name == "parent" and job.attempts_started == 1:
            await behind.run(plain(str, "SET", job.keys.lock(job.id), "another's", "PX", 60_000))
            raise WaitingChildrenError("wait")
        return "done"

    parent = await under_attack.add("parent", {})
    others = [await under_attack.add("n", {}) for _ in range(5)]
    async with Worker(
        QUEUE,
        handle,
        redis=valkey.url,
        prefix=prefix,
        concurrency=2,
        lock_duration=1,
        stalled_check_interval=0.5,
    ):
        await end(under_attack, [other.id for other in others], 5)
        assert await parent.get_state() == JobState.ACTIVE  # it is another's now


async def test_a_sweep_survives_hashes_that_are_no_hashes(
    under_attack: Queue, behind: AsyncTransport, valkey: Server, prefix: str
) -> None:
    queue = under_attack
    jobs = [await queue.add("n", {"i": i}) for i in range(3)]
    stuck = [job.id for job in jobs]
    await behind.run(plain(str, "SET", queue.keys.job(stuck[1]), "not a hash"))
    for job_id in stuck:
        await behind.run(plain(int, "LREM", queue.keys.wait, 1, job_id))
        await behind.run(plain(int, "LPUSH", queue.keys.active, job_id))
    done: list[str] = []

    async def handle(job: Job[Any]) -> None:
        done.append(job.id)

    async with Worker(
        QUEUE,
        handle,
        redis=valkey.url,
        prefix=prefix,
        concurrency=3,
        lock_duration=1,
        stalled_check_interval=0.2,
    ):
        await end(queue, [stuck[0], stuck[2]], 10)
    assert set(done) >= {stuck[0], stuck[2]}
    now = await behind.now_ms()
    await behind.run(locks.official_sweep(queue.keys, max_stalled=1, now_ms=now, interval_ms=1))
