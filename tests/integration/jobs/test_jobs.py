"""What can be done with a single job, from an event loop and from a thread: the same, by the same names."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.manual_worker import ManualWorker
from tests.servers import Server
from toril.commands.command import plain
from toril.commands.server import client_list
from toril.errors import (
    Closed,
    DelayedError,
    FailedChildren,
    InvalidOption,
    JobFailed,
    JobLocked,
    JobNotFound,
    JobNotInState,
    LockLost,
    PayloadMismatch,
    RedisUnavailable,
    Requeue,
)
from toril.events import FinishWaiter, _finish_waiter
from toril.jobs import BlockingJob, BlockingJobCalls, Job, JobCalls
from toril.producer import Queue
from toril.protocol.codec import PayloadCodec
from toril.protocol.options import ParentRef
from toril.protocol.state import JobState
from toril.transport import AsyncTransport, BlockingTransport, ConnectionPolicy


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("emails", redis=server_url, prefix=prefix) as opened:
        yield opened


@pytest.fixture
async def manual_worker(queue: Queue, server_url: str) -> AsyncIterator[ManualWorker]:
    async with ManualWorker(server_url, queue.keys) as worker:
        yield worker


class Facade:
    """Makes the asyncio or blocking job under test, and calls its methods."""

    def __init__(self, kind: str, url: str, queue: Queue) -> None:
        self.kind = kind
        self.transport = BlockingTransport(url)
        self._calls = BlockingJobCalls(self.transport, queue.keys)

    def of(self, job: Job[Any]) -> Any:
        return job if self.kind == "async" else BlockingJob(job.record, self._calls, job.token)

    async def call(self, method: Any, *args: Any, **named: Any) -> Any:
        if self.kind == "async":
            result: Awaitable[Any] = method(*args, **named)
            return await result
        return await asyncio.to_thread(method, *args, **named)


@pytest.fixture(params=["async", "blocking"])
async def facade(request: pytest.FixtureRequest, server_url: str, queue: Queue) -> AsyncIterator[Facade]:
    made = Facade(request.param, server_url, queue)
    yield made
    made.transport.close()


def test_both_classes_have_the_same_names_and_parameters() -> None:
    public = {name for name in dir(Job) if not name.startswith("_")}
    assert public == {name for name in dir(BlockingJob) if not name.startswith("_")}
    for name in public:
        ours, other = getattr(Job, name), getattr(BlockingJob, name)
        if inspect.isfunction(ours):
            assert inspect.signature(ours).parameters == inspect.signature(other).parameters, name


async def test_progress_and_its_message_are_stored(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x"))
    assert job.progress == 0
    await facade.call(job.update_progress, 25, "a quarter")
    assert job.progress == 25
    await facade.call(job.update_progress, {"pages": 3})
    await facade.call(job.refresh)
    assert job.progress == {"pages": 3}
    assert await facade.call(job.get_logs) == ["a quarter"]


@pytest.mark.parametrize("progress", [-1, 101, float("nan")])
async def test_progress_out_of_range_is_refused(queue: Queue, facade: Facade, progress: float) -> None:
    job = facade.of(await queue.add("x"))
    with pytest.raises(InvalidOption):
        await facade.call(job.update_progress, progress)


async def test_logs_keep_the_newest_lines(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x", keep_logs=3))
    for n in range(5):
        await facade.call(job.log, f"line {n}")
    assert await facade.call(job.get_logs) == ["line 2", "line 3", "line 4"]
    await facade.call(job.clear_logs, 1)
    assert await facade.call(job.get_logs) == ["line 4"]
    await facade.call(job.clear_logs)
    assert await facade.call(job.get_logs) == []


async def test_a_job_that_keeps_no_logs_keeps_none(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x", keep_logs=0))
    assert await facade.call(job.log, "a line") == 0
    await facade.call(job.update_progress, 50, "half way")
    assert await facade.call(job.get_logs) == []
    assert await queue.add_job_log(job.id, "kept") == 1
    assert await queue.add_job_log(job.id, "dropped", keep=0) == 0
    assert await facade.call(job.get_logs) == []


async def test_a_job_keeps_a_thousand_lines_by_default(queue: Queue) -> None:
    job = await queue.add("x")
    await asyncio.gather(*(job.log(str(n)) for n in range(1010)))
    assert len(await job.get_logs()) == 1000
    assert "kl" not in job.opts


async def test_data_is_replaced(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x", {"n": 1}))
    assert job.data == {"n": 1}
    await facade.call(job.update_data, {"n": 2})
    assert job.data == {"n": 2}
    found = await queue.get_job(job.id)
    assert found is not None
    assert found.data == {"n": 2}


async def test_new_data_must_fit_the_payload_model(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix, payload=PayloadCodec[int](int)) as queue:
        job = await queue.add("x", 1)
        with pytest.raises(PayloadMismatch):
            await job.update_data("many")  # type: ignore[arg-type]


async def test_a_delayed_job_is_moved_and_promoted(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x", delay=60))
    await facade.call(job.change_delay, 120)
    assert job.delay == 120
    assert await facade.call(job.is_delayed)
    await facade.call(job.promote)
    assert job.delay == 0
    assert await facade.call(job.get_state) is JobState.WAITING
    assert await facade.call(job.is_waiting)
    with pytest.raises(JobNotInState):
        await facade.call(job.change_delay, 5)


async def test_a_waiting_job_gets_another_priority(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x"))
    await facade.call(job.change_priority, 5)
    assert job.priority == 5
    assert await facade.call(job.get_state) is JobState.PRIORITIZED
    await facade.call(job.change_priority, 0, lifo=True)
    assert await facade.call(job.get_state) is JobState.WAITING
    with pytest.raises(InvalidOption):
        await facade.call(job.change_priority, -1)


async def test_a_failed_job_is_retried_and_a_waiting_one_is_not(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    await queue.add("x")
    taken = await manual_worker.take()
    assert await facade.call(facade.of(taken).is_active)
    await manual_worker.fail(taken)
    job = facade.of(taken)
    await facade.call(job.refresh)
    assert await facade.call(job.is_failed)
    assert job.failed_reason == "it broke"
    await facade.call(job.retry)
    assert job.failed_reason is None
    assert job.finished_on is None
    assert await facade.call(job.is_waiting)
    with pytest.raises(JobNotInState):
        await facade.call(job.retry)
    with pytest.raises(InvalidOption):
        await facade.call(job.retry, "waiting")


async def test_a_completed_job_can_be_run_again(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    await queue.add("x")
    taken = await manual_worker.take()
    await manual_worker.complete(taken, 7)
    job = facade.of(taken)
    assert await facade.call(job.is_completed)
    await facade.call(job.retry, "completed")
    assert not await facade.call(job.is_completed)


async def test_a_job_is_removed_unless_somebody_works_on_it(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    await queue.add("x")
    taken = facade.of(await manual_worker.take())
    with pytest.raises(JobLocked):
        await facade.call(taken.remove)
    job = facade.of(await queue.add("y"))
    await facade.call(job.remove)
    with pytest.raises(JobNotFound):
        await facade.call(job.refresh)
    with pytest.raises(JobNotFound):
        await facade.call(job.update_progress, 5)


async def test_a_handler_extends_its_lock_and_nobody_else_does(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    added = await queue.add("x")
    taken = facade.of(await manual_worker.take())
    await facade.call(taken.extend_lock, 60)
    with pytest.raises(LockLost):
        await facade.call(facade.of(added).extend_lock, 60)
    taken.token = "somebody else's"
    with pytest.raises(LockLost):
        await facade.call(taken.extend_lock, 60)
    assert taken.lock_lost


async def test_handlers_steer_their_job_by_names_that_bullmq_users_know(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x"))
    with pytest.raises(DelayedError) as delayed:
        await facade.call(job.move_to_delayed, datetime.now(UTC) + timedelta(seconds=30))
    assert 25 < delayed.value.delay <= 31
    with pytest.raises(DelayedError):
        job.postpone(5)
    with pytest.raises(Requeue):
        job.move_to_wait()


async def test_a_job_moves_to_its_children_only_if_any_is_pending(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    await queue.add("parent", job_id="p")
    parent = facade.of(await manual_worker.take())
    reference = ParentRef("p", queue.keys.qualified)
    assert await facade.call(parent.move_to_waiting_children) is False
    first = await queue.add("child", {}, parent=reference)
    other = await queue.add("other", {})
    assert await facade.call(parent.move_to_waiting_children, other) is False
    assert not parent.waits_for_children
    assert await facade.call(parent.move_to_waiting_children, first) is True
    assert parent.waits_for_children
    assert await queue.get_job_state("p") is JobState.WAITING_CHILDREN
    await manual_worker.complete(await manual_worker.take())
    parent = facade.of(await manual_worker.take())
    by_reference = ParentRef(first.id, queue.keys.qualified)
    assert await facade.call(parent.move_to_waiting_children, by_reference) is False
    assert await queue.get_job_state("p") is JobState.ACTIVE


async def test_a_job_cannot_wait_for_children_that_failed_it_nor_without_its_lock(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    added = facade.of(await queue.add("parent", job_id="p"))
    with pytest.raises(LockLost, match="only the handler"):
        await facade.call(added.move_to_waiting_children)
    parent = facade.of(await manual_worker.take())
    reference = ParentRef("p", queue.keys.qualified)
    await queue.add("child", {}, parent=reference, fail_parent_on_failure=True)
    await manual_worker.fail(await manual_worker.take())
    with pytest.raises(FailedChildren, match=r"Cannot complete job p .* moveToWaitingChildren"):
        await facade.call(parent.move_to_waiting_children)


async def test_a_parent_sees_its_children(queue: Queue, manual_worker: ManualWorker, facade: Facade) -> None:
    parent = await queue.add("parent", priority=9)
    reference = ParentRef(parent.id, queue.keys.qualified)
    await queue.add("child", 1, parent=reference)
    await queue.add("child", 2, parent=reference)
    child = await manual_worker.take()
    assert child.parent == reference
    await manual_worker.complete(child, {"sum": 1})
    job = facade.of(parent)
    key = queue.keys.job(child.id)
    assert await facade.call(job.get_children_values) == {key: {"sum": 1}}
    dependencies = await facade.call(job.get_dependencies)
    assert dependencies.processed == {key: {"sum": 1}}
    assert len(dependencies.unprocessed) == 1
    assert (dependencies.ignored, dependencies.failed) == ({}, [])
    other = await queue.get_job(dependencies.unprocessed[0].rpartition(":")[2])
    assert other is not None
    assert await facade.call(facade.of(other).remove_child_dependency)
    assert (await facade.call(job.get_dependencies)).unprocessed == []
    assert not await facade.call(job.remove_child_dependency)
    await facade.call(job.remove_unprocessed_children)
    assert not await facade.call(job.is_waiting_children)


# --- waiting for the end --------------------------------------------------------------------------------------------


async def test_whoever_waits_gets_the_return_value(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    job = facade.of(await queue.add("x"))
    waiting = asyncio.create_task(facade.call(job.wait_until_finished, 20))
    await manual_worker.complete(await manual_worker.take(), {"ok": True})
    assert await waiting == {"ok": True}
    assert await facade.call(job.wait_until_finished) == {"ok": True}


async def test_whoever_waits_for_a_failing_job_gets_its_reason(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    job = facade.of(await queue.add("x"))
    waiting = asyncio.create_task(facade.call(job.wait_until_finished, 20))
    await manual_worker.fail(await manual_worker.take(), "no such user")
    with pytest.raises(JobFailed) as failed:
        await waiting
    assert (failed.value.job_id, failed.value.reason) == (job.id, "no such user")
    assert failed.value.stacktrace == ["a trace"]
    with pytest.raises(JobFailed):
        await facade.call(job.wait_until_finished)


async def test_a_job_that_is_removed_on_completion_still_returns_its_result(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    job = facade.of(await queue.add("x", remove_on_complete=True))
    waiting = asyncio.create_task(facade.call(job.wait_until_finished, 20))
    await until_read(queue)
    await manual_worker.complete(await manual_worker.take(), 42)
    assert await waiting == 42
    with pytest.raises(JobNotFound):
        await facade.call(job.wait_until_finished)


async def test_a_job_that_is_removed_while_somebody_waits_is_not_found(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x"))
    waiting = asyncio.create_task(facade.call(job.wait_until_finished, 20))
    await until_read(queue)
    await queue.remove(job.id)
    with pytest.raises(JobNotFound):
        await waiting


async def test_waiting_ends_after_the_time_out(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x"))
    with pytest.raises(TimeoutError):
        await facade.call(job.wait_until_finished, 0.05)


async def until_read(queue: Queue) -> None:
    """Until somebody blocks on the queue's events."""
    while True:
        clients = await queue._transport.run(client_list())
        if any(client.get("cmd") == "xread" and "b" in client.get("flags", "") for client in clients):
            return
        await asyncio.sleep(0.01)


async def test_many_wait_over_one_connection(queue: Queue, manual_worker: ManualWorker) -> None:
    jobs = await queue.add_bulk([("x", n) for n in range(50)])
    waiting = [asyncio.create_task(job.wait_until_finished(20)) for job in jobs]
    for _ in jobs:
        job = await manual_worker.take()
        await manual_worker.complete(job, job.data)
    assert await asyncio.gather(*waiting) == list(range(50))


async def test_closing_the_queue_ends_the_waiting(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix) as queue:
        job = await queue.add("x")
        waiting = asyncio.create_task(job.wait_until_finished())
        await until_read(queue)
    with pytest.raises(Closed):
        await waiting


async def test_an_end_without_an_event_is_noticed_all_the_same(
    queue: Queue, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_finish_waiter, "_LINGER_SECONDS", 0.2)
    job = await queue.add("x")
    waiting = asyncio.create_task(job.wait_until_finished(20))
    await until_read(queue)
    taken = await manual_worker.take()
    # The events of its end vanish with the stream, as they do when it is trimmed hard.
    async with asyncio.timeout(10):
        await manual_worker.complete(taken, "done")
        await manual_worker.transport.run(plain(int, "DEL", queue.keys.events))
        assert await waiting == "done"


async def test_making_a_job_is_cheap_and_shares_its_calls(queue: Queue) -> None:
    job = await queue.add("x")
    other = Job(job.record, queue._calls)
    assert not hasattr(other, "__dict__")
    assert isinstance(queue._calls, JobCalls)
    assert repr(other) == f"<Job 'x' {job.id} of 'emails'>"
    assert (other.lock_lost, other.cancelled, other.token) == (False, False, None)


async def test_attributes_show_what_became_of_a_job(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    await queue.add("x", {"n": 1}, attempts=2, priority=4)
    taken = await manual_worker.take()
    await manual_worker.fail(taken, "no luck")
    found = await queue.get_job(taken.id)
    assert found is not None
    job = facade.of(found)
    assert job.queue_name == "emails"
    assert (job.attempts_started, job.attempts_made, job.stalled_count, job.max_attempts) == (1, 1, 0, 2)
    assert job.options.attempts == 2
    assert job.timestamp <= job.processed_on <= job.finished_on
    assert (job.failed_reason, job.stacktrace, job.processed_by) == ("no luck", ["a trace"], "manual")
    assert (job.returnvalue, job.parent, job.priority) == (None, None, 4)


async def test_waiting_while_the_server_is_away_raises_and_works_again_later(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey()
    policy = ConnectionPolicy(connect_timeout=0.3, reconnect_delay=0.01, call_attempts=1)
    async with Queue("emails", redis=server.url, prefix=prefix, policy=policy) as queue:
        job = await queue.add("x")
        server.stop()
        with pytest.raises(RedisUnavailable):
            await job.wait_until_finished(5)
        server.start()
        job = await queue.add("x")
        with pytest.raises(TimeoutError):
            await job.wait_until_finished(0.05)


async def test_a_watch_that_was_closed_waits_no_more(server_url: str, queue: Queue) -> None:
    async with AsyncTransport(server_url) as transport:
        watch = FinishWaiter(transport, queue.keys)
        await watch.close()
        with pytest.raises(Closed):
            await watch.wait("1")


async def test_one_who_gives_up_does_not_spoil_it_for_others(
    queue: Queue, manual_worker: ManualWorker
) -> None:
    job = await queue.add("x")
    impatient, patient = (asyncio.create_task(job.wait_until_finished(20)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await manual_worker.complete(await manual_worker.take(), 1)
    assert await patient == 1
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_a_result_that_does_not_parse_is_none_as_in_node(
    queue: Queue, manual_worker: ManualWorker, facade: Facade
) -> None:
    await queue.add("x")
    taken = await manual_worker.take()
    await manual_worker.complete(taken)
    await manual_worker.transport.run(plain(int, "HSET", queue.keys.job(taken.id), "returnvalue", "{broken"))
    assert await facade.call(facade.of(taken).wait_until_finished) is None


async def test_several_commands_in_one_step_raise_the_first_refusal(queue: Queue, facade: Facade) -> None:
    job = facade.of(await queue.add("x"))
    await queue.remove(job.id)
    with pytest.raises(JobNotFound):
        await facade.call(job.update_progress, 5, "gone")
