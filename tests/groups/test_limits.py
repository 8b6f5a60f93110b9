"""Concurrency and pause of groups: jobs of a closed group are held back, where every client sees them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.groups import killed_workers, one_at_a_time, random_operations
from tests.groups.conftest import QUEUE
from tests.groups.orders import add_tenants, started
from tests.waiting import until, until_equal
from toril import (
    GroupLimits,
    InvalidOption,
    Job,
    JobOptions,
    JobState,
    ManualWorker,
    NewJob,
    Queue,
    RateLimit,
    TransientError,
    Worker,
)
from toril.commands.command import plain
from toril.transport import AsyncTransport

MakeWorker = Callable[..., Worker]
WORKER_PROCESS = Path(__file__).parents[1] / "integration/worker/worker_process.py"


class Gate:
    """A handler whose jobs wait until it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.running: Counter[str | None] = Counter()
        self.most: Counter[str | None] = Counter()

    async def handle(self, job: Job[Any]) -> None:
        self.running[job.group] += 1
        self.most[job.group] = max(self.most[job.group], self.running[job.group])
        await self.opened.wait()
        self.running[job.group] -= 1


async def own_keys(queue: Queue, url: str) -> set[str]:
    """The keys about limits of groups that exist."""
    beginning = queue.keys.toril("group")
    async with AsyncTransport(url) as transport:
        found = await transport.run(plain(list, "KEYS", f"{beginning}*"))
    names = {one.decode().removeprefix(beginning) for one in found}
    return names - {"s", "-clock", "-limits", "-paused", "-weights"}


async def test_two_jobs_of_a_group_run_at_once_and_those_of_others_do_not_wait(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    await queue.set_group_limits("a", GroupLimits(concurrency=2))
    await add_tenants(queue, {"a": 20, "b": 20})
    await queue.add("n", {}, job_id="plain")
    gate = Gate()
    async with make_worker(gate.handle, concurrency=50) as worker:
        await until_equal(lambda: dict(gate.running), {"a": 2, "b": 20, None: 1})
        held = await queue.get_jobs([JobState.DELAYED])
        assert {one.id for one in held} == {f"a-{n}" for n in range(2, 20)}
        gate.opened.set()
        await until_equal(lambda: _completed(queue), 41)
        await worker.run_until_idle()
    assert gate.most == {"a": 2, "b": 20, None: 1}
    order = await started(queue, valkey_url)
    assert [one for one in order if one.startswith("a")] == [f"a-{n}" for n in range(20)]
    assert await own_keys(queue, valkey_url) == set()


async def _completed(queue: Queue) -> int:
    return (await queue.get_job_counts()).completed


async def test_limits_of_all_groups_are_those_of_groups_without_their_own(
    queue: Queue, make_worker: MakeWorker
) -> None:
    await queue.set_group_limits(None, GroupLimits(concurrency=1))
    await queue.set_group_limits("large", GroupLimits(concurrency=3))
    assert await queue.get_group_limits() == {
        None: GroupLimits(concurrency=1),
        "large": GroupLimits(concurrency=3),
    }
    await add_tenants(queue, {"small": 5, "large": 5})
    gate = Gate()
    async with make_worker(gate.handle, concurrency=50):
        await until_equal(lambda: dict(gate.running), {"small": 1, "large": 3})
        await queue.set_group_limits("large", None)
        gate.opened.set()
        await until_equal(lambda: _completed(queue), 10)


async def test_a_limit_counts_jobs_that_run_already(queue: Queue, make_worker: MakeWorker) -> None:
    gate = Gate()
    await add_tenants(queue, {"a": 3})
    async with make_worker(gate.handle, concurrency=50):
        await until_equal(lambda: gate.running["a"], 3)
        await queue.set_group_limits("a", GroupLimits(concurrency=3))
        await queue.add("n", {}, group="a")
        await queue.add("n", {}, group="b")
        await until_equal(lambda: gate.running["b"], 1)
        assert gate.running["a"] == 3
        gate.opened.set()
        await until_equal(lambda: _completed(queue), 5)


async def test_removed_limits_release_what_they_held(queue: Queue, make_worker: MakeWorker) -> None:
    await queue.set_group_limits("a", GroupLimits(concurrency=1))
    await add_tenants(queue, {"a": 250})
    gate = Gate()
    async with make_worker(gate.handle, concurrency=300):
        await until_equal(lambda: _delayed(queue), 249)
        await queue.set_group_limits("a", None)
        await until_equal(lambda: gate.running["a"], 250)
        gate.opened.set()
    assert await queue.get_group_limits() == {}


async def _delayed(queue: Queue) -> int:
    return (await queue.get_job_counts()).delayed


async def test_a_paused_group_waits_and_goes_on_in_its_order(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    await queue.pause_group("a")
    await add_tenants(queue, {"a": 250, "b": 5})
    async with make_worker(concurrency=20) as worker:
        await until_equal(lambda: _completed(queue), 5)
        await until_equal(lambda: _delayed(queue), 250)
        later = await queue.add("n", {}, group="a", job_id="a-250")
        await until_equal(later.get_state, JobState.DELAYED)
        await queue.resume_group("a")
        await until_equal(lambda: _completed(queue), 256)
        await worker.run_until_idle()
    order = await started(queue, valkey_url)
    assert [one for one in order if one.startswith("a")] == [f"a-{n}" for n in range(251)]
    assert await own_keys(queue, valkey_url) == set()


async def test_a_job_added_while_others_are_held_does_not_overtake_them(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    await queue.set_group_limits("a", GroupLimits(concurrency=1))
    await add_tenants(queue, {"a": 5})
    gate = Gate()
    async with make_worker(gate.handle, concurrency=5):
        await until_equal(lambda: _delayed(queue), 4)
        await queue.add("n", {}, group="a", job_id="last")
        gate.opened.set()
        await until_equal(lambda: _completed(queue), 6)
    assert (await started(queue, valkey_url))[-1] == "last"


@pytest.mark.parametrize("keep_order", [True, False])
async def test_a_retry_keeps_its_place_if_asked(
    queue: Queue, make_worker: MakeWorker, valkey_url: str, keep_order: bool
) -> None:
    await queue.set_group_limits("a", GroupLimits(concurrency=1, keep_order=keep_order))
    jobs = [NewJob("n", {}, JobOptions(group="a", job_id=f"j{n}", backoff=0.3)) for n in range(3)]
    await queue.add_bulk(jobs)
    failed = False

    async def handle(job: Job[Any]) -> None:
        nonlocal failed
        if job.id == "j0" and not failed:
            failed = True
            raise TransientError("again")

    async with make_worker(handle, concurrency=5):
        await until_equal(lambda: _completed(queue), 3)
    order = await started(queue, valkey_url)
    assert order == (["j0", "j0", "j1", "j2"] if keep_order else ["j0", "j1", "j2", "j0"])


async def test_never_two_of_a_group_at_once_and_order_is_kept_with_retries(
    valkey_url: str, prefix: str
) -> None:
    found = await one_at_a_time.run(valkey_url, groups=20, jobs=1000, prefix=prefix, within=50)
    assert (found.together, found.out_of_order, len(found.failed_once)) == (0, 0, 100)


async def test_slots_of_a_killed_worker_are_freed_with_its_jobs(
    queue: Queue, make_worker: MakeWorker, valkey_url: str, prefix: str
) -> None:
    await queue.set_group_limits(None, GroupLimits(concurrency=2, keep_order=False))
    jobs = [NewJob("n", {"seconds": 600 if n < 2 else 0}, JobOptions(group="a")) for n in range(10)]
    added = await queue.add_bulk(jobs)
    command = [sys.executable, str(WORKER_PROCESS), valkey_url, prefix, QUEUE, "1"]
    with subprocess.Popen(command) as process:
        await until_equal(lambda: _delayed(queue), 8)
        os.kill(process.pid, signal.SIGKILL)
    async with make_worker(lock_duration=1, stalled_check_interval=1, concurrency=5):
        await until_equal(lambda: _completed(queue), 10)
    assert await own_keys(queue, valkey_url) == set()
    assert [await one.get_state() for one in added] == [JobState.COMPLETED] * 10


@pytest.mark.timeout(120)
async def test_limits_hold_while_workers_are_killed_and_nothing_is_lost(valkey_url: str, prefix: str) -> None:
    found = await killed_workers.run(valkey_url, kills=2, prefix=prefix, within=90)
    assert (found.completed, found.keys_left) == (found.jobs, [])
    assert found.stalled > 0
    assert found.most_at_once <= killed_workers.LIMIT


async def test_a_job_that_another_client_ended_or_removed_frees_its_slot(
    queue: Queue, make_worker: MakeWorker, valkey_url: str, prefix: str
) -> None:
    """What a plain BullMQ client does: it knows nothing of slots."""
    await queue.set_group_limits("a", GroupLimits(concurrency=1))
    await add_tenants(queue, {"a": 2})
    async with ManualWorker(QUEUE, redis=valkey_url, prefix=prefix) as manual:
        job = await manual.get_next_job()
        assert job is not None and job.id == "a-0"
        assert await manual.get_next_job() is None
        async with AsyncTransport(valkey_url) as transport:
            await transport.run(plain(int, "DEL", queue.keys.lock("a-0")))
            await transport.run(plain(int, "LREM", queue.keys.active, 0, "a-0"))
    async with make_worker(stalled_check_interval=1):
        await until(lambda: _completed(queue), "the next job ran")


async def test_limits_of_groups_and_of_the_queue_hold_together(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    await queue.set_global_concurrency(3)
    await queue.set_global_rate_limit(RateLimit(50, 0.2))
    await queue.set_group_limits(None, GroupLimits(concurrency=2))
    await add_tenants(queue, {"a": 60, "b": 60})
    gate = Gate()
    async with make_worker(gate.handle, concurrency=20):
        await until_equal(lambda: sum(gate.running.values()), 3)
        assert max(gate.most.values()) == 2
        gate.opened.set()
        await until_equal(lambda: _completed(queue), 120)
    assert max(gate.most.values()) == 2


async def test_a_key_that_is_no_job_does_not_stop_the_groups(
    queue: Queue, make_worker: MakeWorker, valkey_url: str
) -> None:
    await queue.set_group_limits("a", GroupLimits(concurrency=1))
    await add_tenants(queue, {"a": 3})
    async with AsyncTransport(valkey_url) as transport:
        await transport.run(plain(int, "DEL", queue.keys.job("a-0")))
        await transport.run(plain(bytes, "SET", queue.keys.job("a-0"), "no hash"))
        await transport.run(plain(int, "HSET", queue.keys.job("a-1"), "ats", "no number"))
    async with make_worker():
        await until_equal(lambda: _completed(queue), 2)
    assert (await queue.get_job_counts()).unfinished == 0


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"max_size": "1"}, "max_size"),
        ({"rate_limit": 5}, "rate_limit"),
        ({"keep_order": True}, "keep_order"),
        ({"keep_order": True, "concurrency": 2}, "keep_order"),
        ({"keep_order": 1, "concurrency": 1}, "keep_order"),
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        GroupLimits(**limits)
    assert refused.value.field == field


async def test_wrong_arguments_are_refused_before_anything_is_sent() -> None:
    queue = Queue(QUEUE, redis="redis://localhost:1")
    with pytest.raises(InvalidOption, match="limits"):
        await queue.set_group_limits("a", {"concurrency": 1})  # type: ignore[arg-type]
    for call in (queue.pause_group, queue.resume_group):
        with pytest.raises(InvalidOption, match="group"):
            await call("")


async def test_a_held_job_keeps_no_slot_that_an_earlier_one_would_wait_for(
    queue: Queue, make_worker: MakeWorker
) -> None:
    """The retried job kept its slot for its order; when it is held with an earlier one, it must not wait for itself."""
    await queue.set_group_limits("a", GroupLimits(concurrency=1, keep_order=True))
    await queue.add("n", {}, group="a", job_id="earlier", delay=3600)
    await queue.add("n", {}, group="a", job_id="retried", attempts=2, backoff=0.2)
    order: list[str] = []

    async def handle(job: Job[Any]) -> None:
        order.append(job.id)
        if job.id == "retried" and job.attempts_made == 0:
            await queue.pause_group("a")
            raise TransientError("again")

    async with make_worker(handle, concurrency=5):
        await until_equal(lambda: _held(queue), 1)
        earlier = await queue.get_job("earlier")
        assert earlier is not None
        await earlier.promote()
        await until_equal(lambda: _held(queue), 2)
        await queue.resume_group("a")
        await until_equal(lambda: _completed_jobs(queue), 2)
    assert order == ["retried", "earlier", "retried"]


async def _held(queue: Queue) -> int:
    counts = await queue.get_group_counts()
    return counts["a"].held if "a" in counts else 0


async def _completed_jobs(queue: Queue) -> int:
    return (await queue.get_job_counts()).completed


async def test_a_failed_job_that_is_retried_as_new_is_held_while_its_group_is_paused(
    queue: Queue, make_worker: MakeWorker
) -> None:
    """Its attempts are counted from the beginning, so that it looks like a job without a group in the wait list."""
    ran = 0

    async def handle(_: Job[Any]) -> None:
        nonlocal ran
        ran += 1
        if ran == 1:
            raise ValueError("no")

    job = await queue.add("n", {}, group="a", attempts=1)
    async with make_worker(handle):
        await until_equal(lambda: queue.get_job_state(job.id), JobState.FAILED)
    await queue.pause_group("a")
    await job.retry(reset_attempts_made=True, reset_attempts_started=True)
    async with make_worker(handle):
        await until_equal(lambda: _held(queue), 1)
        assert ran == 1
        await queue.resume_group("a")
        await until_equal(lambda: queue.get_job_state(job.id), JobState.COMPLETED)


@pytest.mark.timeout(150)
async def test_random_operations_leave_no_job_held(valkey_url: str, prefix: str) -> None:
    """The small version of the command."""
    found = await random_operations.run(valkey_url, seconds=5, seed=7, prefix=prefix)
    assert found.added > 0
    assert found.keys_left == []
    assert found.counts.delayed == found.counts.active == 0
