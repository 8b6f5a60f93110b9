"""Lanes: long-lived tasks that run one job after another.

Guarantee: each job runs in a context of its own, and what it sets there is gone with it; a job that never waits costs
neither a task nor a turn of the event loop; a job that waits lets the next one begin. A lane that is cancelled ends,
whoever cancelled it: `asyncio.run` waits for all tasks that it cancels.

A lane takes jobs until none is left. When a job suspends, further lanes are roused for those that wait. So a batch of
quick jobs is done by one lane in one turn, and slow jobs run side by side. A job that comes alone runs up to its first
wait in the turn that brought it, in the name of a lane that rests; only if it has to wait does the lane take over.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

T = TypeVar("T")

# Each lane that suspends rouses two: a hundred slow jobs all run after seven turns of the loop.
ROUSED_AT_ONCE = 2
# A handler that will not be cancelled is left behind after this time.
STUBBORN_SECONDS = 1.0


class _Begun(NamedTuple):
    """A coroutine that waits for something, and how to step it inside its context."""

    run: Callable[..., Any]
    coroutine: Coroutine[Any, Any, Any]
    awaited: Any

    def put_off(self) -> _Begun:
        """For a task that will wait for it in a later turn: until then the future is not marked as ours to await,
        for whoever awaits it meanwhile takes the mark off."""
        if getattr(self.awaited, "_asyncio_future_blocking", False):
            self.awaited._asyncio_future_blocking = False  # noqa: SLF001  # how a task tells that it was yielded a future
            return self._replace(awaited=_PutOff(self.awaited))
        return self


class _PutOff:
    """A future whose mark was taken off."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future

    def cancel(self) -> bool:
        return self._future.cancel()

    def marked(self) -> asyncio.Future[Any]:
        self._future._asyncio_future_blocking = True  # noqa: SLF001
        return self._future


@types.coroutine
def _taken_up(begun: _Begun, cancelled: asyncio.CancelledError | None) -> Generator[Any, Any, None]:
    """Carries on with what was put off. A cancel that came meanwhile goes where a task sends it: to the future that is
    awaited, and to the coroutine itself only if that cannot be cancelled."""
    awaited = begun.awaited
    if isinstance(awaited, _PutOff):
        if cancelled is not None and awaited.cancel():
            cancelled = None
        if cancelled is None:
            begun = begun._replace(awaited=awaited.marked())
    yield from _carried_on(begun, cancelled)


@types.coroutine
def _carried_on(begun: _Begun, error: BaseException | None = None) -> Generator[Any, Any, None]:
    """Steps a coroutine to its end on behalf of the task that awaits us; first of all it may be thrown an error."""
    run, coroutine, awaited = begun
    try:
        if error is not None:
            awaited = run(coroutine.throw, error)
        while True:
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:  # noqa: BLE001  # whatever is thrown at the task is the coroutine's
                awaited = run(coroutine.throw, thrown)
            else:
                awaited = run(coroutine.send, value)
    except StopIteration:
        return


class _Rest:
    """The rest of a lane: what ends it, and why it ended."""

    __slots__ = ("begun", "end", "is_call", "task")

    def __init__(self, end: asyncio.Future[None], task: asyncio.Task[Any]) -> None:
        self.end = end
        self.task = task
        self.is_call = False  # the lane is to look at the backlog
        self.begun: _Begun | None = None  # or to carry on with this


class TaskPool(Generic[T]):
    """Runs `work(item)` for each item given, in as few tasks as the items allow."""

    def __init__(self, work: Callable[[T, asyncio.Task[Any]], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._backlog: deque[T] = deque()
        self._idle: list[_Rest] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._roused = 0  # lanes that will look at the backlog in the next turn
        self._closed = False

    @property
    def backlog(self) -> int:
        """Items that no lane has begun."""
        return len(self._backlog)

    def put(self, item: T) -> None:
        """Begins an item as soon as the loop turns."""
        self._backlog.append(item)
        if self._roused == 0:
            self._rouse(1)

    def begin(self, item: T) -> None:
        """Begins an item that comes alone: at once, if a lane is free and no task's turn is under way."""
        if self._backlog or asyncio.current_task(self._loop) is not None or (rest := self._resting()) is None:
            self.put(item)
            return
        # asyncio knows whose turn it is by these two: they are there for whoever steps a task's work himself.
        asyncio._enter_task(self._loop, rest.task)  # noqa: SLF001
        try:
            begun = self._stepped(item, rest.task)
            rest.begun = None if begun is None else begun.put_off()
        except BaseException as error:  # noqa: BLE001  # the loop's matter or the process's, not that of the connection
            self._loop.call_soon(_raise, error)
        finally:
            asyncio._leave_task(self._loop, rest.task)  # noqa: SLF001
            self._rest_on(rest)

    def _resting(self) -> _Rest | None:
        while self._idle:
            rest = self._idle.pop()
            if (
                not rest.end.done()
            ):  # a lane that was cancelled in this turn will end, and must not take a job along
                return rest
        return None

    def _stepped(self, item: T, task: asyncio.Task[Any]) -> _Begun | None:
        """Runs an item up to its first wait; None when there was none."""
        run = self._context.copy().run
        coroutine = self._work(item, task)
        try:
            return _Begun(run, coroutine, run(coroutine.send, None))
        except StopIteration:
            return None

    def _rest_on(self, rest: _Rest) -> None:
        """Ends the rest of a lane if there is something to carry on with."""
        if rest.end.done():
            return  # the job has cancelled its task, and so the lane
        if rest.begun is None:
            self._idle.append(rest)
        else:
            rest.end.set_result(None)

    def _rouse(self, count: int) -> None:
        for _ in range(min(count, len(self._backlog) - self._roused)):
            self._roused += 1
            rest = self._resting()
            if rest is not None:
                rest.is_call = True
                rest.end.set_result(None)
            else:
                task = self._loop.create_task(self._lane(), name=f"toril-lane-{len(self._tasks) + 1}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _suspended(self) -> None:
        self._rouse(ROUSED_AT_ONCE)

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of a task
        self._roused -= 1
        while not self._closed:
            while self._backlog:
                begun = self._stepped(self._backlog.popleft(), task)
                if begun is not None:
                    self._suspended()
                    await _carried_on(begun)
                if task.cancelling():
                    # Meant for the job that has just ended, or for us: no other job may feel it.
                    self._suspended()
                    return
            if not self._closed:
                await self._rest(task)
                if task.cancelling():
                    self._suspended()
                    return

    async def _rest(self, task: asyncio.Task[Any]) -> None:
        """Until there is something to look at, or until what was begun in our name has come to its end."""
        rest = _Rest(self._loop.create_future(), task)
        self._idle.append(rest)
        cancelled: asyncio.CancelledError | None = None
        try:
            await rest.end
        except asyncio.CancelledError as error:
            if rest.begun is None:
                self._leave(rest)
                raise
            cancelled = error
        if rest.begun is not None:
            await _taken_up(rest.begun, cancelled)
        else:
            self._roused -= 1

    def _leave(self, rest: _Rest) -> None:
        if rest in self._idle:
            self._idle.remove(rest)
        elif rest.is_call:  # roused in this very turn, for something that another lane must do now
            self._roused -= 1
            self._suspended()

    async def close(self) -> None:
        """Ends all lanes; nothing may be running any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STUBBORN_SECONDS)


def _raise(error: BaseException) -> NoReturn:
    raise error
