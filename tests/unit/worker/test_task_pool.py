"""The task pool: in which turn and in which task a job runs, and what cancelling does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from toril.worker._task_pool import TaskPool

Job = Callable[[], Coroutine[Any, Any, None]]
flavour: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="plain")


class Pool:
    """A task pool whose jobs are coroutine functions, and the tasks that ran them."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.pool: TaskPool[Job] = TaskPool(self._work)

    async def _work(self, job: Job, task: asyncio.Task[Any]) -> None:
        assert asyncio.current_task() is task
        self.tasks.append(task)
        await job()

    async def warm(self) -> None:
        """One task has run something and is idle."""
        done = asyncio.Event()

        async def first() -> None:
            done.set()

        self.pool.start(first)
        await done.wait()
        await asyncio.sleep(0)

    async def bring(self, *jobs: Job) -> None:
        """Starts jobs from a callback of the loop, as a reply does; returns after that callback."""
        done = asyncio.get_running_loop().create_future()

        def start_all() -> None:
            for job in jobs:
                self.pool.start(job, alone=True)
            done.set_result(None)

        asyncio.get_running_loop().call_soon(start_all)
        await done


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool()
    await pool.warm()
    yield pool
    await pool.pool.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("toril-pool")]


async def test_a_lone_job_that_never_waits_is_done_in_the_turn_that_started_it(pool: Pool) -> None:
    seen: list[str] = []

    async def job() -> None:
        seen.append("done")

    def bring() -> None:
        pool.pool.start(job, alone=True)
        seen.append("returned")

    asyncio.get_running_loop().call_soon(bring)
    await asyncio.sleep(0)
    assert seen == ["done", "returned"]


async def test_a_thousand_lone_jobs_need_one_task(pool: Pool) -> None:
    for _ in range(1000):
        await pool.bring(_nothing)
    assert len(pool.tasks) == 1001
    assert len(set(pool.tasks)) == 1


async def test_a_lone_job_that_waits_continues_in_its_task_while_others_begin(pool: Pool) -> None:
    gate, seen = asyncio.Event(), list[str]()

    def job(name: str) -> Job:
        async def run() -> None:
            seen.append(f"{name} begins")
            await gate.wait()
            assert asyncio.current_task() in pool.tasks
            seen.append(f"{name} ends")

        return run

    await pool.bring(job("a"))
    await pool.bring(job("b"), job("c"))
    await _turns(10)
    assert sorted(seen) == ["a begins", "b begins", "c begins"]
    gate.set()
    await _turns(10)
    assert len(seen) == 6
    assert len(set(pool.tasks)) == 3


async def test_what_a_job_sets_in_its_context_is_gone_with_it(pool: Pool) -> None:
    seen: list[str] = []

    async def colour() -> None:
        flavour.set("own")
        await asyncio.sleep(0)
        seen.append(flavour.get())

    async def look() -> None:
        seen.append(flavour.get())

    await pool.bring(colour)
    await _turns(10)
    await pool.bring(look)
    assert seen == ["own", "plain"]
    assert flavour.get() == "plain"


async def test_begun_inside_a_task_a_job_waits_for_a_turn(pool: Pool) -> None:
    seen: list[str] = []

    async def job() -> None:
        seen.append("done")

    pool.pool.start(job, alone=True)
    assert seen == []
    await _turns(10)
    assert seen == ["done"]


async def test_a_lone_job_that_waits_can_be_cancelled_before_its_task_continues(pool: Pool) -> None:
    seen: list[str] = []

    async def job() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    def bring() -> None:
        pool.pool.start(_quietly(job), alone=True)
        pool.tasks[-1].cancel()

    asyncio.get_running_loop().call_soon(bring)
    await _turns(10)
    assert seen == ["cancelled"]
    await _still_works(pool)


async def test_a_lone_job_that_cancels_itself_is_cancelled_at_its_next_wait(pool: Pool) -> None:
    seen: list[str] = []

    async def job() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        seen.append("cancel")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")

    await pool.bring(job)
    await _turns(10)
    assert seen == ["cancel", "cancelled"]
    await _still_works(pool)


async def test_a_lone_job_that_cancels_itself_and_never_waits_ends_only_its_task(pool: Pool) -> None:
    async def job() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    await pool.bring(job)
    await _turns(10)
    assert pool.tasks[-1].cancelled()
    await _still_works(pool)


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_time_limit_inside_a_lone_job_holds(pool: Pool, seconds: float) -> None:
    seen: list[str] = []

    async def job() -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()
        except TimeoutError:
            seen.append("late")
        await asyncio.sleep(0)
        seen.append("goes on")

    await pool.bring(job)
    await _until(lambda: len(seen) == 2)
    assert seen == ["late", "goes on"]
    await _still_works(pool)


async def test_a_group_of_tasks_inside_a_lone_job_ends_with_it(pool: Pool) -> None:
    seen: list[str] = []

    async def job() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_turns(10))
            group.create_task(asyncio.sleep(0))
        seen.append("both")

    await pool.bring(job)
    await _until(lambda: len(seen) == 1)
    assert seen == ["both"]


async def test_what_a_lone_job_awaits_may_be_awaited_by_others_before_its_task_continues(pool: Pool) -> None:
    seen: list[object] = []

    async def job() -> None:
        work = asyncio.create_task(asyncio.sleep(0, "both"))
        other = asyncio.create_task(_awaiting(work))
        seen.append(await work)
        seen.append(await other)

    await pool.bring(job)
    await _until(lambda: len(seen) == 2)
    assert seen == ["both", "both"]


@pytest.mark.parametrize("how", ["itself", "from outside", "by a deadline that is past"])
async def test_a_lone_job_that_is_cancelled_before_its_task_continues_cancels_what_it_awaits(
    pool: Pool, how: str
) -> None:
    made: list[asyncio.Task[Any]] = []
    seen: list[str] = []

    async def job() -> None:
        made.append(asyncio.create_task(asyncio.Event().wait()))
        task = asyncio.current_task()
        assert task is not None
        if how == "itself":
            task.cancel()
        try:
            async with asyncio.timeout(-1 if how.startswith("by") else None):
                await asyncio.gather(*made)
        except (asyncio.CancelledError, TimeoutError) as error:
            seen.append(type(error).__name__)

    def bring() -> None:
        pool.pool.start(job, alone=True)
        if how == "from outside":
            pool.tasks[-1].cancel()

    asyncio.get_running_loop().call_soon(bring)
    await _turns(10)
    assert seen == ["TimeoutError" if how.startswith("by") else "CancelledError"]
    assert made[0].cancelled()
    await _still_works(pool)


async def test_a_cancel_that_comes_too_late_for_one_job_does_not_cancel_the_next(pool: Pool) -> None:
    seen: list[str] = []

    async def job() -> None:
        await asyncio.sleep(0)
        seen.append("undisturbed")

    def bring() -> None:
        pool.tasks[0].cancel()
        pool.pool.start(job, alone=True)

    asyncio.get_running_loop().call_soon(bring)
    await _turns(10)
    assert seen == ["undisturbed"]
    await _still_works(pool)


@pytest.mark.parametrize("error", [ValueError("broken"), GeneratorExit("broken")])
async def test_an_error_of_the_runner_reaches_the_loop_and_costs_no_task(
    pool: Pool, error: BaseException
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))

    async def job() -> None:
        raise error

    await pool.bring(job)
    await _turns(10)
    assert reported == [error]
    await _still_works(pool)
    assert len(set(pool.tasks)) == 1


def test_ctrl_c_in_a_lone_job_ends_the_loop_and_not_its_caller() -> None:
    seen: list[str] = []

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        pool = Pool()
        await pool.warm()

        def bring() -> None:
            pool.pool.start(interrupted, alone=True)
            seen.append("returned")

        asyncio.get_running_loop().call_soon(bring)
        await asyncio.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert seen == ["returned"]


async def test_a_batch_of_quick_jobs_is_done_by_one_task(pool: Pool) -> None:
    for _ in range(100):
        pool.pool.start(_nothing)
    await _turns(10)
    assert len(pool.tasks) == 101
    assert len(set(pool.tasks)) == 1


async def test_slow_jobs_run_concurrently(pool: Pool) -> None:
    gate, begun = asyncio.Event(), list[int]()

    async def slow() -> None:
        begun.append(1)
        await gate.wait()

    for _ in range(100):
        pool.pool.start(slow)
    await _turns(10)  # each that waits wakes two: seven are enough
    assert len(begun) == 100
    gate.set()
    await _turns(10)
    await _still_works(pool)


async def _nothing() -> None:
    pass


async def _awaiting(task: asyncio.Task[Any]) -> Any:
    return await task


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


def _quietly(job: Job) -> Job:
    async def run() -> None:
        try:
            await job()
        except asyncio.CancelledError:
            return

    return run


async def _still_works(pool: Pool) -> None:
    for _ in range(3):
        done = asyncio.Event()

        async def job(done: asyncio.Event = done) -> None:
            await asyncio.sleep(0)
            done.set()

        await pool.bring(job)
        async with asyncio.timeout(5):
            await done.wait()
