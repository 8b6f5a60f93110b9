"""Lanes: which turn a job runs in, whose task it is, and what cancelling does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from toril.worker._task_pool import TaskPool

Job = Callable[[], Coroutine[Any, Any, None]]
flavour: contextvars.ContextVar[str] = contextvars.ContextVar("flavour", default="plain")


class Ring:
    """Lanes whose jobs are coroutine functions, and the tasks that ran them."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        self.lanes: TaskPool[Job] = TaskPool(self._work)

    async def _work(self, job: Job, task: asyncio.Task[Any]) -> None:
        assert asyncio.current_task() is task
        self.tasks.append(task)
        await job()

    async def warm(self) -> None:
        """One lane has run something and rests."""
        done = asyncio.Event()

        async def first() -> None:
            done.set()

        self.lanes.put(first)
        await done.wait()
        await asyncio.sleep(0)

    async def brought(self, *jobs: Job) -> None:
        """Jobs begin from a callback of the loop, as a reply does; returns after that callback."""
        over = asyncio.get_running_loop().create_future()

        def bring() -> None:
            for job in jobs:
                self.lanes.begin(job)
            over.set_result(None)

        asyncio.get_running_loop().call_soon(bring)
        await over


@pytest.fixture
async def ring():
    ring = Ring()
    await ring.warm()
    yield ring
    await ring.lanes.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("toril-lane")]


async def test_a_lone_job_that_never_waits_is_done_in_the_turn_that_brought_it(ring) -> None:
    said: list[str] = []

    async def job() -> None:
        said.append("done")

    def bring() -> None:
        ring.lanes.begin(job)
        said.append("brought")

    asyncio.get_running_loop().call_soon(bring)
    await asyncio.sleep(0)
    assert said == ["done", "brought"]


async def test_a_thousand_lone_jobs_need_one_lane(ring) -> None:
    for _ in range(1000):
        await ring.brought(_nothing)
    assert len(ring.tasks) == 1001
    assert len(set(ring.tasks)) == 1


async def test_a_lone_job_that_waits_goes_on_in_its_lane_while_others_begin(ring) -> None:
    gate, said = asyncio.Event(), []

    def job(name: str) -> Job:
        async def run() -> None:
            said.append(f"{name} begins")
            await gate.wait()
            assert asyncio.current_task() in ring.tasks
            said.append(f"{name} ends")

        return run

    await ring.brought(job("a"))
    await ring.brought(job("b"), job("c"))
    await _turns(10)
    assert sorted(said) == ["a begins", "b begins", "c begins"]
    gate.set()
    await _turns(10)
    assert len(said) == 6
    assert len(set(ring.tasks)) == 3


async def test_what_a_job_sets_in_its_context_is_gone_with_it(ring) -> None:
    seen: list[str] = []

    async def colour() -> None:
        flavour.set("own")
        await asyncio.sleep(0)
        seen.append(flavour.get())

    async def look() -> None:
        seen.append(flavour.get())

    await ring.brought(colour)
    await _turns(10)
    await ring.brought(look)
    assert seen == ["own", "plain"]
    assert flavour.get() == "plain"


async def test_begun_inside_a_task_a_job_waits_for_a_turn(ring) -> None:
    said: list[str] = []

    async def job() -> None:
        said.append("done")

    ring.lanes.begin(job)
    assert said == []
    await _turns(10)
    assert said == ["done"]


async def test_a_lone_job_that_waits_can_be_cancelled_before_its_lane_took_over(ring) -> None:
    said: list[str] = []

    async def job() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            said.append("cancelled")
            raise

    def bring() -> None:
        ring.lanes.begin(_quietly(job))
        ring.tasks[-1].cancel()

    asyncio.get_running_loop().call_soon(bring)
    await _turns(10)
    assert said == ["cancelled"]
    await _still_works(ring)


async def test_a_lone_job_that_cancels_itself_is_cancelled_at_its_next_wait(ring) -> None:
    said: list[str] = []

    async def job() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        said.append("cancel")
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            said.append("cancelled")

    await ring.brought(job)
    await _turns(10)
    assert said == ["cancel", "cancelled"]
    await _still_works(ring)


async def test_a_lone_job_that_cancels_itself_and_never_waits_ends_its_lane_alone(ring) -> None:
    async def job() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    await ring.brought(job)
    await _turns(10)
    assert ring.tasks[-1].cancelled()
    await _still_works(ring)


@pytest.mark.parametrize("seconds", [0, 0.01])
async def test_a_time_limit_inside_a_lone_job_holds(ring, seconds) -> None:
    said: list[str] = []

    async def job() -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(10)
        except TimeoutError:
            said.append("late")
        await asyncio.sleep(0)
        said.append("goes on")

    await ring.brought(job)
    await _until(lambda: said == ["late", "goes on"])
    await _still_works(ring)


async def test_a_group_of_tasks_inside_a_lone_job_ends_with_it(ring) -> None:
    said: list[str] = []

    async def job() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.01))
            group.create_task(asyncio.sleep(0))
        said.append("both")

    await ring.brought(job)
    await _until(lambda: said == ["both"])


async def test_what_a_lone_job_awaits_may_be_awaited_by_others_before_its_lane_took_over(ring) -> None:
    said: list[object] = []

    async def job() -> None:
        work = asyncio.create_task(asyncio.sleep(0, "both"))
        other = asyncio.create_task(_awaiting(work))
        said.append(await work)
        said.append(await other)

    await ring.brought(job)
    await _until(lambda: said == ["both", "both"])


@pytest.mark.parametrize("how", ["itself", "from outside", "by a deadline that is past"])
async def test_a_lone_job_that_is_cancelled_before_its_lane_took_over_cancels_what_it_awaits(
    ring, how
) -> None:
    made: list[asyncio.Task[Any]] = []
    said: list[str] = []

    async def job() -> None:
        made.append(asyncio.create_task(asyncio.sleep(30)))
        task = asyncio.current_task()
        assert task is not None
        if how == "itself":
            task.cancel()
        try:
            async with asyncio.timeout(-1 if how.startswith("by") else None):
                await asyncio.gather(*made)
        except (asyncio.CancelledError, TimeoutError) as error:
            said.append(type(error).__name__)

    def bring() -> None:
        ring.lanes.begin(job)
        if how == "from outside":
            ring.tasks[-1].cancel()

    asyncio.get_running_loop().call_soon(bring)
    await _turns(10)
    assert said == ["TimeoutError" if how.startswith("by") else "CancelledError"]
    assert made[0].cancelled()
    await _still_works(ring)


async def test_a_cancel_that_comes_too_late_for_one_job_is_not_felt_by_the_next(ring) -> None:
    said: list[str] = []

    async def job() -> None:
        await asyncio.sleep(0)
        said.append("undisturbed")

    def bring() -> None:
        ring.tasks[0].cancel()
        ring.lanes.begin(job)

    asyncio.get_running_loop().call_soon(bring)
    await _turns(10)
    assert said == ["undisturbed"]
    await _still_works(ring)


@pytest.mark.parametrize("error", [ValueError("broken"), GeneratorExit("broken")])
async def test_an_error_of_our_own_reaches_the_loop_and_costs_no_lane(ring, error) -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))

    async def job() -> None:
        raise error

    await ring.brought(job)
    await _turns(10)
    assert told == [error]
    await _still_works(ring)
    assert len(set(ring.tasks)) == 1


def test_ctrl_c_in_a_lone_job_ends_the_loop_and_not_whoever_brought_it() -> None:
    said: list[str] = []

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        ring = Ring()
        await ring.warm()

        def bring() -> None:
            ring.lanes.begin(interrupted)
            said.append("brought")

        asyncio.get_running_loop().call_soon(bring)
        await asyncio.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert said == ["brought"]


async def test_a_batch_of_quick_jobs_is_done_by_one_lane(ring) -> None:
    for _ in range(100):
        ring.lanes.put(_nothing)
    await _turns(10)
    assert len(ring.tasks) == 101
    assert len(set(ring.tasks)) == 1


async def test_slow_jobs_run_side_by_side(ring) -> None:
    gate, begun = asyncio.Event(), []

    async def slow() -> None:
        begun.append(1)
        await gate.wait()

    for _ in range(100):
        ring.lanes.put(slow)
    await _turns(10)  # each that waits rouses two: seven are enough
    assert len(begun) == 100
    gate.set()
    await _turns(10)
    await _still_works(ring)


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


async def _still_works(ring: Ring) -> None:
    for _ in range(3):
        done = asyncio.Event()

        async def job(done: asyncio.Event = done) -> None:
            await asyncio.sleep(0)
            done.set()

        await ring.brought(job)
        async with asyncio.timeout(5):
            await done.wait()
