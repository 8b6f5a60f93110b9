"""Lanes: long-lived tasks that run one job after another.

Guarantee: each job runs in a context of its own, and what it sets there is gone with it; a job that never waits costs
neither a task nor a turn of the event loop; a job that waits lets the next one begin. A lane that is cancelled ends,
whoever cancelled it: `asyncio.run` waits for all tasks that it cancels.

A lane takes jobs until none is left. When a job suspends, further lanes are roused for those that wait. So a batch of
quick jobs is done by one lane in one turn, and slow jobs run side by side.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Each lane that suspends rouses two: a hundred slow jobs all run after seven turns of the loop.
ROUSED_AT_ONCE = 2
# A handler that will not be cancelled is left behind after this time.
STUBBORN_SECONDS = 1.0


@types.coroutine
def within(
    context: contextvars.Context, coroutine: Coroutine[Any, Any, Any], on_suspend: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """Steps a coroutine inside a context, on behalf of the task that awaits us; says when it first suspends."""
    run = context.run
    try:
        awaited = run(coroutine.send, None)
        on_suspend()
        while True:
            try:
                value = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001  # whatever is thrown at the task is the coroutine's
                awaited = run(coroutine.throw, error)
            else:
                awaited = run(coroutine.send, value)
    except StopIteration as end:
        return end.value


class Lanes(Generic[T]):
    """Runs `work(item)` for each item given, in as few tasks as the items allow."""

    def __init__(self, work: Callable[[T, asyncio.Task[Any]], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._backlog: deque[T] = deque()
        self._idle: list[asyncio.Future[None]] = []
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

    def _rouse(self, count: int) -> None:
        for _ in range(min(count, len(self._backlog))):
            self._roused += 1
            if self._idle:
                self._idle.pop().set_result(None)
            else:
                task = self._loop.create_task(self._lane(), name=f"toril-lane-{len(self._tasks) + 1}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _suspended(self) -> None:
        if self._backlog and self._roused == 0:
            self._rouse(ROUSED_AT_ONCE)

    async def _lane(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of a task
        while not self._closed:
            self._roused = max(0, self._roused - 1)
            while self._backlog:
                item = self._backlog.popleft()
                await within(self._context.copy(), self._work(item, task), self._suspended)
                if task.cancelling():
                    # Meant for the job that has just ended, or for us: no other job may feel it.
                    self._suspended()
                    return
            if not self._closed:
                await self._rest()

    async def _rest(self) -> None:
        rest = self._loop.create_future()
        self._idle.append(rest)
        try:
            await rest
        except asyncio.CancelledError:
            if rest in self._idle:
                self._idle.remove(rest)
            else:  # roused in this very turn, for something that another lane must do now
                self._roused = max(0, self._roused - 1)
                self._suspended()
            raise

    async def close(self) -> None:
        """Ends all lanes; nothing may be running any more."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STUBBORN_SECONDS)
