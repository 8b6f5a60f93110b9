"""Looking at queues and changing them as a whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.integration.manual_worker import ManualWorker
from tests.servers import Server, ValkeyCluster
from tests.waiting import until
from toril.errors import (
    InvalidOption,
    JobBelongsToScheduler,
    JobLocked,
    JobNotFound,
    JobNotInState,
    QueueHasActiveJobs,
)
from toril.producer import Queue
from toril.protocol.keys import client_name
from toril.protocol.state import JobState
from toril.protocol.worker_options import RateLimit
from toril.transport import AsyncTransport
from toril.worker import Worker


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("emails", redis=server_url, prefix=prefix) as opened:
        yield opened


@pytest.fixture
async def manual_worker(queue: Queue, server_url: str) -> AsyncIterator[ManualWorker]:
    async with ManualWorker(server_url, queue.keys) as worker:
        yield worker


async def failed(
    queue: Queue, manual_worker: ManualWorker, *names: str, reason: str = "it broke"
) -> list[str]:
    ids = []
    for name in names:
        await queue.add(name)
        job = await manual_worker.take()
        await manual_worker.fail(job, reason)
        ids.append(job.id)
    return ids


async def test_counts_name_all_eight_states(queue: Queue, manual_worker: ManualWorker) -> None:
    await queue.add_bulk([("x", n) for n in range(4)])
    await queue.add("x", delay=60)
    await queue.add("x", priority=1)
    await manual_worker.complete(await manual_worker.take())
    await manual_worker.fail(await manual_worker.take())
    await manual_worker.take()
    counts = await queue.get_job_counts()
    assert counts.as_dict() == {
        "active": 1,
        "completed": 1,
        "delayed": 1,
        "failed": 1,
        "paused": 0,
        "prioritized": 1,
        "waiting": 1,
        "waiting-children": 0,
    }
    assert counts.ready == 2
    assert await queue.count() == 3


async def test_a_paused_queue_keeps_its_jobs_until_it_is_resumed(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    job = await queue.add("x")
    await queue.pause()
    assert await queue.is_paused()
    assert (await queue.get_job_counts()).paused == 1
    assert [one.id for one in await queue.get_waiting()] == [job.id]
    assert [one.id for one in await queue.get_jobs("waiting")] == [job.id]
    assert (
        await queue.get_jobs("wait") == []
    )  # As Node: the list alone, which is empty while a queue is paused.
    assert await job.is_waiting()
    await queue.resume()
    assert not await queue.is_paused()
    assert (await manual_worker.take()).id == job.id


async def test_drain_removes_what_waits_and_leaves_the_rest(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    await queue.add_bulk([("x", n) for n in range(3)])
    await queue.add("x", delay=60)
    await manual_worker.complete(await manual_worker.take())
    await queue.drain()
    assert (await queue.get_job_counts()).as_dict().items() >= {
        "waiting": 0,
        "delayed": 1,
        "completed": 1,
    }.items()
    await queue.drain(delayed=True)
    assert (await queue.get_job_counts()).delayed == 0


async def test_clean_removes_old_jobs_of_one_state_up_to_a_limit(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    for _ in range(3):
        await queue.add("x")
        await manual_worker.complete(await manual_worker.take())
    assert await queue.clean(grace=3600) == []
    assert len(await queue.clean(limit=2)) == 2
    assert len(await queue.clean(0)) == 1
    assert (await queue.get_job_counts()).completed == 0
    with pytest.raises(InvalidOption):
        await queue.clean(state="waiting-children")


async def test_a_large_clean_is_done_in_several_calls(queue: Queue) -> None:
    await queue.add_bulk([("x", n) for n in range(2300)])
    assert len(await queue.clean(0, state="waiting")) == 2300
    assert (await queue.get_job_counts()).total == 0


@pytest.mark.parametrize(
    ("state", "options"),
    [
        ("waiting", {}),
        ("paused", {}),
        ("prioritized", {"priority": 5}),
        ("delayed", {"delay": 7200}),
    ],
)
async def test_clean_finds_old_jobs_behind_many_young_ones(
    queue: Queue, server: Server, state: str, options: dict[str, Any]
) -> None:
    if state == "paused":
        await queue.pause()
    young_options = {"delay": 60} if state == "delayed" else options
    young = await queue.add_bulk([("x", n, young_options) for n in range(1100)])
    long_ago = datetime.now().astimezone() - timedelta(hours=1)
    old = await queue.add_bulk([("x", n, {**options, "timestamp": long_ago}) for n in range(700)])
    assert await queue.clean(grace=60, limit=1050, state=state) == []  # as many are examined, as in BullMQ
    assert sorted(await queue.clean(grace=60, state=state)) == sorted(job.id for job in old)
    left = await queue.get_jobs(state, ascending=True)
    assert [job.id for job in left] == [job.id for job in young]
    with server.client() as client:
        counts = [entry[b"count"] for _, entry in client.xrange(queue.keys.events) if b"count" in entry]
        assert client.keys(queue.keys.toril("clean:*")) == []
    assert counts[0] == counts[1] == b"0"  # one at the start of each clean
    assert sum(int(one) for one in counts) == 700


async def test_obliterate_leaves_no_key_not_even_ours(
    queue: Queue, manual_worker: ManualWorker, server: Server
) -> None:
    await queue.add_bulk([("x", n) for n in range(1500)])
    job = await manual_worker.take()
    await queue.cancel(job.id)
    with pytest.raises(QueueHasActiveJobs):
        await queue.obliterate()
    await queue.obliterate(force=True)
    with server.client() as client:
        assert client.keys(f"{queue.keys.base}*") == []


async def test_jobs_are_listed_by_state_in_the_order_asked_for(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    first, second, third = await queue.add_bulk([("x", n) for n in range(3)])
    later = await queue.add("x", delay=60)
    assert [job.id for job in await queue.get_jobs("waiting")] == [third.id, second.id, first.id]
    assert [job.id for job in await queue.get_waiting(0, 1)] == [first.id, second.id]
    assert [job.id for job in await queue.get_delayed()] == [later.id]
    assert {job.id for job in await queue.get_jobs()} == {first.id, second.id, third.id, later.id}
    taken = await manual_worker.take()
    assert [job.id for job in await queue.get_active()] == [taken.id]
    await manual_worker.complete(taken, {"ok": True})
    (completed,) = await queue.get_completed()
    assert completed.returnvalue == {"ok": True}
    assert await queue.get_job_state(taken.id) is JobState.COMPLETED
    assert await queue.get_job_state("nobody") is JobState.UNKNOWN
    assert await queue.get_job("nobody") is None


async def test_the_failed_set_is_the_dead_letter_queue(queue: Queue, manual_worker: ManualWorker) -> None:
    ids = await failed(queue, manual_worker, "a", "b", reason="disk full")
    letters = await queue.get_dead_letters()
    assert {letter.id for letter in letters} == set(ids)
    assert letters[0].failed_reason == "disk full"
    assert letters[0].stacktrace == ["a trace"]
    assert letters[0].attempts_made == 1
    assert letters[0].processed_by == "manual"


async def test_all_failed_jobs_go_back_to_the_queue(queue: Queue, manual_worker: ManualWorker) -> None:
    ids = await failed(queue, manual_worker, *("x" for _ in range(5)))
    assert await queue.retry_jobs(limit=2) == 2
    assert await queue.retry_jobs() == 3
    assert {job.id for job in await queue.get_waiting()} == set(ids)
    assert await queue.retry_jobs() == 0


async def test_only_jobs_that_ended_up_to_a_time_go_back(queue: Queue, manual_worker: ManualWorker) -> None:
    early = await failed(queue, manual_worker, "a", "b", "a")
    job = await queue.get_job(early[-1])
    assert job is not None and job.finished_on is not None
    ended_ms = job.record.finished_on_ms
    assert ended_ms is not None

    async def is_later() -> bool:
        return await manual_worker.transport.now_ms() > ended_ms

    await until(is_later, "another millisecond")
    late = await failed(queue, manual_worker, "a", "b")
    assert await queue.retry_jobs(timestamp=job.finished_on - timedelta(days=1)) == 0
    assert await queue.retry_jobs(timestamp=job.finished_on, name="b") == 1
    assert await queue.retry_jobs(timestamp=job.finished_on, limit=1) == 1
    assert await queue.retry_jobs(timestamp=job.finished_on) == 1
    assert {one.id for one in await queue.get_waiting()} == set(early)
    assert {one.id for one in await queue.get_failed()} == set(late)
    with pytest.raises(InvalidOption, match="timestamp"):
        await queue.retry_jobs(timestamp=datetime(2025, 1, 1))  # noqa: DTZ001  # of which zone?


async def test_failed_jobs_are_retried_by_name_reason_and_predicate(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    a, b = await failed(queue, manual_worker, "a", "b", reason="time-out after 5 s")
    (c,) = await failed(queue, manual_worker, "c", reason="no such user")
    assert await queue.retry_jobs(name="b") == 1
    assert [job.id for job in await queue.get_waiting()] == [b]
    assert await queue.retry_jobs(reason=re.compile(r"after \d+ s")) == 1
    assert await queue.retry_jobs(reason="time-out") == 0
    assert await queue.retry_jobs(where=lambda job: job.failed_reason == "no such user") == 1
    assert {job.id for job in await queue.get_waiting()} == {a, b, c}


async def test_retries_by_filter_walk_through_more_than_one_page(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    names = ["even" if n % 2 else "odd" for n in range(450)]
    await failed(queue, manual_worker, *names)
    assert await queue.retry_jobs(name="even", limit=200) == 200
    assert await queue.retry_jobs(name="even") == 25
    assert (await queue.get_job_counts()).failed == 225


async def test_retries_keep_to_their_rate(queue: Queue, manual_worker: ManualWorker) -> None:
    await failed(queue, manual_worker, *("x" for _ in range(6)))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await queue.retry_jobs(rate=20) == 6
    assert loop.time() - begun >= 2 * 2 / 20  # three batches of two, two pauses between them
    with pytest.raises(InvalidOption):
        await queue.retry_jobs(rate=0)


async def test_delayed_jobs_are_promoted_all_or_the_first(queue: Queue) -> None:
    first = await queue.add("x", delay=10)
    await queue.add_bulk([("x", n, {"delay": 60 + n}) for n in range(3)])
    assert await queue.promote_jobs(limit=1) == 1
    assert [job.id for job in await queue.get_waiting()] == [first.id]
    assert await queue.promote_jobs() == 3
    assert await queue.promote_jobs() == 0
    assert (await queue.get_job_counts()).as_dict().items() >= {"waiting": 4, "delayed": 0}.items()


async def test_removing_a_job_that_is_worked_on_is_refused(queue: Queue, manual_worker: ManualWorker) -> None:
    await queue.add("x")
    job = await manual_worker.take()
    with pytest.raises(JobLocked):
        await queue.remove(job.id)
    waiting = await queue.add("y")
    await queue.remove(waiting.id)
    assert await queue.get_job(waiting.id) is None


async def test_the_next_run_of_a_scheduler_cannot_be_removed_alone(queue: Queue, server: Server) -> None:
    with server.client() as client:
        client.zadd(queue.keys.repeat, {"nightly": 1})
        client.hset(queue.keys.job("repeat:nightly:1"), mapping={"name": "x", "rjk": "nightly"})
    with pytest.raises(JobBelongsToScheduler):
        await queue.remove("repeat:nightly:1")


async def test_cancelling_removes_a_waiting_job_and_asks_the_worker_of_a_running_one(
    queue: Queue, manual_worker: ManualWorker, server: Server
) -> None:
    running = await queue.add("x")
    await manual_worker.take()
    waiting, delayed = await queue.add("y"), await queue.add("z", delay=60)
    with server.client() as client:
        assert await queue.cancel(running.id, "no longer wanted") == "asked"
        word = queue.keys.toril(f"cancel:{running.id}")
        lock = client.get(queue.keys.lock(running.id))
        assert client.get(word) == lock + b"\nno longer wanted"  # for this attempt only
        assert 0 < client.pttl(word) <= 60_000
        for job in (waiting, delayed):
            assert await queue.cancel(job.id) == "removed"
            assert await queue.get_job(job.id) is None
            assert not client.exists(queue.keys.toril(f"cancel:{job.id}"))


async def test_cancelling_what_has_ended_or_never_was_is_refused(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    await queue.add("x")
    job = await manual_worker.take()
    await manual_worker.complete(job)
    with pytest.raises(JobNotInState):
        await queue.cancel(job.id)
    with pytest.raises(JobNotFound):
        await queue.cancel("nobody")


async def test_limits_over_all_workers_are_set_shown_and_lifted(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    assert await queue.get_global_concurrency() is None
    await queue.set_global_concurrency(1)
    assert await queue.get_global_concurrency() == 1
    await queue.add("x")
    await manual_worker.take()
    assert await queue.is_maxed()
    await queue.set_global_concurrency(None)
    assert not await queue.is_maxed()
    await queue.set_global_rate_limit(RateLimit(5, 2.0))
    assert await queue.get_global_rate_limit() == RateLimit(5, 2.0)
    await queue.set_global_rate_limit(None)
    assert await queue.get_global_rate_limit() is None
    with pytest.raises(InvalidOption):
        await queue.set_global_concurrency(0)


async def test_a_held_rate_opens_by_itself_or_when_it_is_removed(queue: Queue) -> None:
    assert await queue.get_rate_limit_ttl() == 0
    await queue.rate_limit(30)
    assert 29 < await queue.get_rate_limit_ttl() <= 30
    await queue.remove_rate_limit_key()
    assert await queue.get_rate_limit_ttl() == 0


async def test_workers_are_listed_by_the_names_that_node_gives_and_reads(
    queue: Queue, server_url: str
) -> None:
    names = (client_name(queue.keys, "worker", "host-1"), client_name(queue.keys, "worker"), "bull:other")
    async with AsyncExitStack() as stack:
        for name in names:
            transport = await stack.enter_async_context(AsyncTransport(server_url, name=name))
            await transport.connect()
        found = await queue.get_workers()
    assert {worker.worker_id for worker in found} == {"host-1", None}
    assert all(worker.address and worker.age >= 0 and worker.idle >= 0 for worker in found)


async def test_logs_are_read_from_either_end(queue: Queue) -> None:
    job = await queue.add("x")
    for n in range(5):
        assert await queue.add_job_log(job.id, f"line {n}") == n + 1
    assert (await queue.get_job_logs(job.id)).lines == [f"line {n}" for n in range(5)]
    newest = await queue.get_job_logs(job.id, 0, 1, ascending=False)
    assert (newest.lines, newest.count) == (["line 4", "line 3"], 5)
    with pytest.raises(JobNotFound):
        await queue.add_job_log("nobody", "line")


async def test_priorities_are_counted(queue: Queue) -> None:
    await queue.add_bulk([("x", {}, {"priority": priority}) for priority in (0, 1, 1, 5)])
    assert await queue.get_counts_per_priority([0, 1, 2, 5, 1]) == {0: 1, 1: 2, 2: 0, 5: 1}


async def test_metrics_of_a_queue_without_any_are_empty(queue: Queue) -> None:
    metrics = await queue.get_metrics("completed")
    assert (metrics.count, metrics.minutes) == (0, [])


async def test_events_are_trimmed_on_demand(queue: Queue) -> None:
    await queue.add_bulk([("x", n) for n in range(300)])
    assert await queue.trim_events(10) > 0


async def test_progress_can_be_set_from_outside(queue: Queue) -> None:
    job = await queue.add("x")
    await queue.update_job_progress(job.id, {"step": 2})
    await job.refresh()
    assert job.progress == {"step": 2}


async def test_a_name_with_signs_of_patterns_is_obliterated_without_its_neighbours(
    server_url: str, server: Server, prefix: str
) -> None:
    async with (
        Queue("a*", redis=server_url, prefix=prefix) as starred,
        Queue("ab", redis=server_url, prefix=prefix) as neighbour,
    ):
        await starred.add("x")
        await neighbour.add("x")
        await starred.obliterate()
    with server.client() as client:
        left = [key.decode() for key in client.keys("*")]
    assert left
    assert all(key.startswith(f"{prefix}:ab:") for key in left)
    assert any(":toril:ledger:" in key for key in left)


async def test_management_works_on_a_cluster(cluster: ValkeyCluster, prefix: str) -> None:
    async with (
        Queue("emails", redis=cluster.url, prefix=prefix) as queue,
        ManualWorker(cluster.url, queue.keys) as manual_worker,
        Worker("emails", manual_worker.complete, redis=cluster.url, prefix=prefix, worker_id="w1") as worker,
    ):
        workers = await until(queue.get_workers, "the worker has its blocking connection")
        assert [one.worker_id for one in workers] == ["w1"]
        await worker.stop()
        ids = await failed(queue, manual_worker, "a", "b")
        assert await queue.retry_jobs(name="a") == 1
        assert await queue.retry_jobs() == 1
        await queue.pause()
        await queue.resume()
        assert {job.id for job in await queue.get_waiting()} == set(ids)
        await queue.cancel(ids[0])
        assert len(await queue.clean(0, state="wait")) == 1
        await queue.obliterate(force=True)
    for node in cluster.nodes:
        with node.client() as client:
            assert [key for key in client.keys("*") if key.startswith(prefix.encode())] == []


@pytest.mark.parametrize(
    ("field", "step"),
    [
        ("limit", lambda queue: queue.clean(0, -1)),
        ("state", lambda queue: queue.retry_jobs(state="waiting")),
        ("limit", lambda queue: queue.retry_jobs(limit=-1)),
        ("timestamp", lambda queue: queue.retry_jobs(timestamp=5)),
        ("limit", lambda queue: queue.promote_jobs(limit=-1)),
        ("kind", lambda queue: queue.get_metrics("stalled")),
        ("max_len", lambda queue: queue.trim_events(-1)),
        ("limit", lambda queue: queue.set_global_concurrency(1.5)),
        ("limit", lambda queue: queue.set_global_rate_limit(5)),
        ("job_id", lambda queue: queue.remove("")),
        ("progress", lambda queue: queue.update_job_progress("x", 500)),
        ("keep", lambda queue: queue.add_job_log("x", "line", keep=-1)),
        ("limit", lambda queue: queue.schedulers.upsert("s", every=5, limit="many")),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_asked_of_the_server(
    prefix: str, field: str, step: Any
) -> None:
    queue: Queue = Queue("work", redis="redis://127.0.0.1:1", prefix=prefix)  # where nobody listens
    try:
        with pytest.raises(InvalidOption) as refused:
            await step(queue)
        assert refused.value.field == field
        assert refused.value.remedy
    finally:
        await queue.close()
