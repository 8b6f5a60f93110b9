"""The tasks of a backend."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class CallTasks:
    """Tasks of calls that need more than one command. `wait` returns when all of them have ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, step: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(step, name="toril-call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
