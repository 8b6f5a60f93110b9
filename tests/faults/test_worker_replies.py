"""Every call of a worker meets every fault of a network: no job is lost, and none is done again without a word."""

from __future__ import annotations

import asyncio
import collections
import logging
from typing import Any

import pytest

from tests.faults.conftest import QUEUE
from tests.faults.proxy import Kind, Proxy
from tests.servers import Server
from tests.waiting import until, until_equal
from toril import Job, JobOptions, NewJob, ParentRef, Queue, TransientError, Worker
from toril.commands import add, read
from toril.errors import WaitingChildrenError
from toril.protocol.state import JobState
from toril.transport import AsyncTransport, ConnectionPolicy

pytestmark = pytest.mark.timeout(90)
KINDS: tuple[Kind, ...] = ("cut before", "cut after", "cut within", "delay", "swallow")

# What a worker says to the server, by a word that only this call holds.
CALLS = {
    "settle and take": ":wait",
    "wait for work": "BZPOPMIN",
    "renew locks": ":stalled",
    "sweep": ":stalled-check",
    "report": "toril:worker",
    "look for cancellations": "toril:cancel",
    "tell progress": "progress",
    "ask the time": "TIME",
}


# Workers wait five seconds for a reply; here one, so that a test of many lost replies takes seconds.
IMPATIENT = ConnectionPolicy(
    call_attempts=1, command_timeout=1.0, reconnect_delay=0.02, max_reconnect_delay=0.2
)

# The great exchange meets them all; for the small calls, a cut and a silence tell what there is to know.
MEETINGS = [
    (call, kind)
    for call in CALLS
    for kind in (KINDS if call == "settle and take" else ("cut after", "swallow"))
]


@pytest.mark.parametrize(("call", "kind"), MEETINGS)
async def test_a_call_that_meets_a_fault_loses_no_job(
    under_attack: Queue,
    bad_network: Proxy,
    prefix: str,
    call: str,
    kind: Kind,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: collections.Counter[str] = collections.Counter()
    harmed = 0

    async def handle(job: Job[Any]) -> None:
        nonlocal harmed
        runs[job.id] += 1
        if runs.total() in (5, 15, 25):
            harmed += 1
            bad_network.arm(kind, CALLS[call].encode(), seconds=1.5)
        if call == "tell progress":
            await job.update_progress(10)
        await asyncio.sleep(0.01)
        if job.data["i"] % 10 == 3 and job.attempts_made == 0:
            raise TransientError("again")

    jobs = await under_attack.add_bulk(
        [("n", {"i": i}) for i in range(40)],
    )
    with caplog.at_level(logging.INFO, "toril.worker"):
        async with Worker(
            QUEUE, handle, redis=bad_network.url, policy=IMPATIENT,
            prefix=prefix, concurrency=4, max_stalled_count=10, drain_delay=0.5,
            lock_duration=1, stalled_check_interval=0.5, backoff_jitter=0, unknown_errors="transient",
        ):  # fmt: skip
            await all_done(under_attack, 40)
    counts = await under_attack.get_job_counts()
    assert counts.completed == 40, counts
    assert set(runs) == {job.id for job in jobs}
    repeated = {job_id: count for job_id, count in runs.items() if count > expected(jobs, job_id)}
    for job_id in repeated:
        said = [
            line for line in caplog.messages if job_id in line and ("stalled" in line or "retried" in line)
        ]
        assert said, f"{job_id} ran {runs[job_id]} times without a word"
    print(f"{call}, {kind}: {len(repeated)} of 40 repeated")


def expected(jobs: list[Job[Any]], job_id: str) -> int:
    return next(2 if job.data["i"] % 10 == 3 else 1 for job in jobs if job.id == job_id)


async def all_done(queue: Queue, count: int) -> None:
    async with asyncio.timeout(40):
        while (await queue.get_job_counts()).completed < count:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", ["cut after", "cut within"])
async def test_jobs_whose_fetch_reply_was_lost_are_found_by_their_token_and_run_once(
    under_attack: Queue, bad_network: Proxy, prefix: str, kind: Kind
) -> None:
    """No stall and no second run: the worker finds them under its own token, long before their lock runs out."""
    runs: collections.Counter[str] = collections.Counter()

    async def handle(job: Job[Any]) -> None:
        runs[job.id] += 1

    jobs = await under_attack.add_bulk([("n", {}) for _ in range(5)])
    fault = bad_network.arm(kind, b":wait")
    async with Worker(
        QUEUE,
        handle,
        redis=bad_network.url,
        policy=IMPATIENT,
        prefix=prefix,
        concurrency=5,
        lock_duration=60,
        stalled_check_interval=60,
    ):
        await all_done(under_attack, 5)
    assert fault.struck.is_set()
    assert runs == collections.Counter(job.id for job in jobs)
    assert max(job.stalled_count for job in await under_attack.get_completed()) == 0


async def test_jobs_found_by_their_token_are_taken_as_capacity_allows_and_each_once(
    under_attack: Queue, bad_network: Proxy, prefix: str
) -> None:
    runs: collections.Counter[str] = collections.Counter()

    async def handle(job: Job[Any]) -> None:
        runs[job.id] += 1
        await asyncio.sleep(0.02)

    jobs = await under_attack.add_bulk([("n", {}) for _ in range(12)])
    fault = bad_network.arm("cut after", b":wait")
    async with Worker(
        QUEUE,
        handle,
        redis=bad_network.url,
        policy=IMPATIENT,
        prefix=prefix,
        concurrency=12,
        lock_duration=60,
        stalled_check_interval=60,
    ) as worker:
        await asyncio.to_thread(fault.struck.wait, 10)
        worker.concurrency = 5  # all twelve are ours, and the capacity is five
        await all_done(under_attack, 12)
    assert runs == collections.Counter(job.id for job in jobs)


async def test_jobs_found_by_their_token_run_once_also_when_their_end_is_handed_in_again(
    under_attack: Queue, bad_network: Proxy, prefix: str
) -> None:
    """A finish is refused for a child, and its job stays in hand until its failure is accepted."""
    runs: collections.Counter[str] = collections.Counter()

    async def handle(job: Job[Any]) -> None:
        runs[job.id] += 1
        if job.name == "parent":
            parent = ParentRef(job.id, under_attack.keys.qualified)
            await under_attack.add("child", {}, parent=parent, delay=600)

    worker = Worker(
        QUEUE, handle, redis=bad_network.url, policy=IMPATIENT, prefix=prefix, concurrency=12,
        lock_duration=60, stalled_check_interval=60,
    )  # fmt: skip
    async with worker:
        first = await under_attack.add("first", {})
        await first.wait_until_finished(timeout=20)  # the server knows the script now
        await worker.pause()
        options = JobOptions(attempts=1)
        jobs = await under_attack.add_bulk([NewJob(name, {}, options) for name in ("n", "parent") * 6])
        bad_network.shut_the_door()
        fault = bad_network.arm("cut after", b":wait")
        worker.resume()
        await asyncio.to_thread(fault.struck.wait, 10)
        worker.concurrency = 1  # all twelve are ours, and the capacity is one
        bad_network.open_the_door()

        async def none_is_active() -> bool:
            return not (await under_attack.get_job_counts()).active

        await until(none_is_active, "no job is active", within=40)
    counts = await under_attack.get_job_counts()
    assert runs == collections.Counter(job.id for job in [first, *jobs])
    assert (counts.completed, counts.failed) == (7, 6)


@pytest.mark.parametrize("kind", ["cut after", "cut within"])
async def test_a_finish_whose_reply_was_lost_is_recognised_and_counted_once(
    under_attack: Queue, bad_network: Proxy, prefix: str, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    async def handle(job: Job[Any]) -> str:
        bad_network.arm(kind, b":wait")
        if job.name == "bad":
            raise ValueError("no")
        return "done"

    worker = Worker(QUEUE, handle, redis=bad_network.url, policy=IMPATIENT, prefix=prefix)
    worker.on("completed", lambda job, _: told.append(job.id))
    worker.on("failed", lambda job, _: told.append(job.id))
    good = await under_attack.add("good", {}, remove_on_complete=True)
    bad = await under_attack.add("bad", {}, attempts=1)
    async with worker:
        await until(lambda: len(told) >= 2, "the ends of both jobs")
    assert sorted(told) == sorted([good.id, bad.id])
    assert (worker.processed, worker.failed) == (1, 1)
    assert (await good.get_state(), await bad.get_state()) == (JobState.UNKNOWN, JobState.FAILED)
    assert "refused" not in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_parent_that_parks_itself_over_a_bad_line_runs_again_when_its_children_are_done(
    under_attack: Queue, behind: AsyncTransport, bad_network: Proxy, prefix: str, kind: Kind
) -> None:
    runs: collections.Counter[str] = collections.Counter()

    async def handle(job: Job[Any]) -> str:
        runs[job.name] += 1
        if job.name == "parent" and runs["parent"] == 1:
            await add_child(behind, under_attack, job)
            bad_network.arm(kind, b":waiting-children", seconds=1.5)
            raise WaitingChildrenError("first the child")
        return "done"

    parent = await under_attack.add("parent", {})
    async with Worker(
        QUEUE, handle, redis=bad_network.url, policy=IMPATIENT,
        prefix=prefix, lock_duration=1, stalled_check_interval=0.5,
        max_stalled_count=10, drain_delay=0.5,
    ):  # fmt: skip
        await until_equal(parent.get_state, JobState.COMPLETED, within=30)
    assert runs["child"] == 1
    assert runs["parent"] >= 2


async def add_child(transport: AsyncTransport, queue: Queue, parent: Job[Any]) -> None:
    child = add.JobToAdd(
        name="child", data=b"{}", options={}, timestamp=await transport.now_ms(), id="child",
        parent_key=queue.keys.job(parent.id), parent={"id": parent.id, "queueKey": queue.keys.qualified},
    )  # fmt: skip
    await transport.run(add.add_job(queue.keys, child))
    assert await transport.run(read.get_state(queue.keys, "child")) in ("waiting", "wait")


async def test_many_cuts_in_a_row_on_a_busy_worker_lose_nothing(
    under_attack: Queue, valkey: Server, bad_network: Proxy, prefix: str
) -> None:
    runs: collections.Counter[str] = collections.Counter()

    async def handle(job: Job[Any]) -> None:
        runs[job.id] += 1
        if runs.total() % 20 == 0:
            kind: Kind = KINDS[runs.total() // 20 % 3]
            bad_network.arm(kind, b":wait")

    await under_attack.add_bulk([("n", {}) for _ in range(500)])
    async with Worker(
        QUEUE, handle, redis=bad_network.url, policy=IMPATIENT,
        prefix=prefix, concurrency=20, lock_duration=5, stalled_check_interval=1,
        max_stalled_count=10,
    ):  # fmt: skip
        await all_done(under_attack, 500)
    assert len(runs) == 500
    print(f"{runs.total() - 500} repeated")
    assert runs.total() == 500
