"""Long-lived tasks that run one job after another.

Guarantee: each job runs in a context of its own, and what it sets there ends with it; a job that never waits costs
neither a task nor a turn of the event loop; a job that waits lets the next one begin. A task of the pool that is
cancelled ends, whatever the reason: `asyncio.run` waits for all tasks that it cancels.

A task runs jobs until the backlog is empty. When a job suspends, further tasks are woken for those in the backlog. So a
batch of quick jobs is done by one task in one turn, and slow jobs run concurrently. A job that comes alone runs up to
its first wait in the turn that started it, as an idle task of the pool; that task continues with it if it has to wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, cast

T = TypeVar("T")

# Each task that suspends wakes two: a hundred slow jobs all run after seven turns of the loop.
WOKEN_AT_ONCE = 2
# Tasks that do not end when they are cancelled are left behind after this time.
CLOSE_SECONDS = 1.0


class _Suspended(NamedTuple):
    """A coroutine that waits for something, and the function that steps it inside its context."""

    run: Callable[..., Any]
    coroutine: Coroutine[Any, Any, Any]
    awaited: Any

    def deferred(self) -> _Suspended:
        """For a task that will wait in a later turn: until then the future is not marked as awaited by us, because
        another task that awaits it meanwhile removes the mark."""
        if getattr(self.awaited, "_asyncio_future_blocking", False):
            self.awaited._asyncio_future_blocking = False  # how a task knows that it was yielded a future
            return self._replace(awaited=_FutureWithoutMark(self.awaited))
        return self


class _FutureWithoutMark:
    """A future whose mark was removed."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[object]) -> None:
        self._future = future

    def cancel(self) -> bool:
        return self._future.cancel()

    def marked(self) -> asyncio.Future[object]:
        self._future._asyncio_future_blocking = True
        return self._future


@types.coroutine
def _continue_deferred(
    suspended: _Suspended, cancelled: asyncio.CancelledError | None
) -> Generator[Any, Any, None]:
    """Continues a deferred coroutine. A cancellation that came meanwhile goes where a task sends it: to the awaited
    future, and to the coroutine itself only if that future cannot be cancelled."""
    awaited = suspended.awaited
    if isinstance(awaited, _FutureWithoutMark):
        if cancelled is not None and awaited.cancel():
            cancelled = None
        if cancelled is None:
            suspended = suspended._replace(awaited=awaited.marked())
    yield from _continue(suspended, cancelled)


@types.coroutine
def _continue(suspended: _Suspended, error: BaseException | None = None) -> Generator[Any, Any, None]:
    """Steps a coroutine to its end, as the task that awaits this; an `error` is thrown into it first."""
    run, coroutine, awaited = suspended
    try:
        if error is not None:
            awaited = run(coroutine.throw, error)
        while True:
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:  # noqa: BLE001  # whatever is thrown into the task is the coroutine's
                awaited = run(coroutine.throw, thrown)
            else:
                awaited = run(coroutine.send, value)
    except StopIteration:
        return


class _IdleTask:
    """A task that waits for a job: `wake` ends the wait."""

    __slots__ = ("has_backlog", "suspended", "task", "wake")

    def __init__(self, wake: asyncio.Future[None], task: asyncio.Task[object]) -> None:
        self.wake = wake
        self.task = task
        self.has_backlog = False  # woken to run jobs of the backlog
        self.suspended: _Suspended | None = None  # or to continue with this job


class TaskPool(Generic[T]):
    """Runs `work(item, task)` for each item, in as few tasks as the items allow."""

    def __init__(self, work: Callable[[T, asyncio.Task[Any]], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._backlog: deque[T] = deque()
        self._idle: list[_IdleTask] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = 0  # tasks that will check the backlog in the next turn
        self._closed = False

    @property
    def backlog(self) -> int:
        """Items that no task has begun."""
        return len(self._backlog)

    def start(self, item: T, *, alone: bool = False) -> None:
        """Begins an item in the next turn of the loop; one that comes alone at once, if a task is idle.

        An item begins at once only outside of all tasks: in a callback of the loop.
        """
        is_possible = alone and not self._backlog and asyncio.current_task(self._loop) is None
        idle = self._take_idle() if is_possible else None
        if idle is not None:
            self._start_now(item, idle)
            return
        self._backlog.append(item)
        if self._woken == 0:
            self._wake(1)

    def _start_now(self, item: T, idle: _IdleTask) -> None:
        # asyncio knows the current task by these two functions: they exist for code that steps a task's work itself.
        asyncio._enter_task(self._loop, idle.task)
        try:
            suspended = self._step(item, idle.task)
            idle.suspended = None if suspended is None else suspended.deferred()
        except BaseException as error:  # noqa: BLE001  # for the loop or the process, not for the connection that called
            self._loop.call_soon(_raise, error)
        finally:
            asyncio._leave_task(self._loop, idle.task)
            self._wake_or_keep(idle)

    def _wake_or_keep(self, idle: _IdleTask) -> None:
        if idle.wake.done():
            return  # the job has cancelled its task
        if idle.suspended is None:
            self._idle.append(idle)
        else:
            idle.wake.set_result(None)

    def _step(self, item: T, task: asyncio.Task[object]) -> _Suspended | None:
        """Runs an item up to its first wait; None when there was none."""
        run = self._context.copy().run
        coroutine = self._work(item, task)
        try:
            return _Suspended(run, coroutine, run(coroutine.send, None))
        except StopIteration:
            return None

    # --- tasks ----------------------------------------------------------------------------------------------

    def _take_idle(self) -> _IdleTask | None:
        while self._idle:
            idle = self._idle.pop()
            if (
                not idle.wake.done()
            ):  # a task that was cancelled in this turn will end, and must not get a job
                return idle
        return None

    def _wake(self, count: int) -> None:
        """Wakes tasks for the backlog, or creates them."""
        for _ in range(min(count, len(self._backlog) - self._woken)):
            self._woken += 1
            idle = self._take_idle()
            if idle is not None:
                idle.has_backlog = True
                idle.wake.set_result(None)
            else:
                name = f"toril-pool-{len(self._tasks) + 1}"
                task = self._loop.create_task(self._run(), name=name)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())  # this coroutine runs in a task
        self._woken -= 1
        while not self._closed:
            while self._backlog:
                suspended = self._step(self._backlog.popleft(), task)
                if suspended is not None:
                    self._wake(WOKEN_AT_ONCE)
                    await _continue(suspended)
                if task.cancelling():
                    # Meant for the job that has just ended, or for this task: no other job may be cancelled by it.
                    self._wake(WOKEN_AT_ONCE)
                    return
            if not self._closed:
                await self._wait(task)
                if task.cancelling():
                    self._wake(WOKEN_AT_ONCE)
                    return

    async def _wait(self, task: asyncio.Task[object]) -> None:
        """Waits until there is a backlog, or until a job that was started as this task has ended."""
        idle = _IdleTask(self._loop.create_future(), task)
        self._idle.append(idle)
        cancelled: asyncio.CancelledError | None = None
        try:
            await idle.wake
        except asyncio.CancelledError as error:
            if idle.suspended is None:
                self._remove(idle)
                raise
            cancelled = error
        if idle.suspended is not None:
            await _continue_deferred(idle.suspended, cancelled)
        else:
            self._woken -= 1

    def _remove(self, idle: _IdleTask) -> None:
        if idle in self._idle:
            self._idle.remove(idle)
        elif idle.has_backlog:  # woken in this turn, for a job that another task must run now
            self._woken -= 1
            self._wake(WOKEN_AT_ONCE)

    async def close(self) -> None:
        """Ends all tasks; no job may be running."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)


def _raise(error: BaseException) -> NoReturn:
    raise error
