"""A job in an event loop.

Guarantee: every operation is one or two round trips, and raises an error of our tree that says what to do.
"""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import Any, TypeVar

from toril.errors import JobNotFound
from toril.jobs._operations import run_steps
from toril.jobs.base import Dependencies, FinalState, JobBase, T, returned
from toril.jobs.calls import JobCalls
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.options import ParentRef
from toril.protocol.state import JobState

V = TypeVar("V")


class Job(JobBase[T]):
    """A job that was added, found or taken. Attributes are as last seen; `refresh` looks again."""

    __slots__ = ()

    _calls: JobCalls

    async def _do(self, steps: Generator[Any, Any, V]) -> V:
        return await run_steps(self._calls.transport, steps)

    async def refresh(self) -> None:
        """Reads the job again; raises `JobNotFound` when it was removed."""
        await self._do(self._refresh())

    async def update_data(self, data: T) -> None:
        """Replaces the payload."""
        await self._do(self._update_data(data))

    async def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Says how far the job is: a number from 0 to 100 or an object of your own. `message` becomes a log line."""
        await self._do(self._update_progress(progress, message))

    async def log(self, line: str) -> int:
        """Appends a line to the job's log; returns how many lines it has now."""
        return await self._do(self._log(line))

    async def get_logs(self, start: int = 0, end: int = -1) -> list[str]:
        """The lines of the log, oldest first."""
        return await self._do(self._get_logs(start, end))

    async def clear_logs(self, keep: int = 0) -> None:
        """Removes all lines but the newest `keep`."""
        await self._do(self._clear_logs(keep))

    async def change_delay(self, delay: Duration) -> None:
        """Makes a delayed job due `delay` from now."""
        await self._do(self._change_delay(delay))

    async def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Gives a waiting job another priority; 0 puts it among those without one."""
        await self._do(self._change_priority(priority, lifo))

    async def promote(self) -> None:
        """Makes a delayed job ready now."""
        await self._do(self._promote())

    async def retry(self, state: FinalState = "failed") -> None:
        """Sends a finished job back to the queue."""
        await self._do(self._retry(state))

    async def remove(self, *, children: bool = True) -> None:
        """Removes the job and its children; raises `JobLocked` while one of them is being worked on."""
        await self._do(self._remove(children))

    async def get_state(self) -> JobState:
        """Where the job is."""
        return await self._do(self._get_state())

    async def is_completed(self) -> bool:
        return await self._do(self._is_in(JobState.COMPLETED))

    async def is_failed(self) -> bool:
        return await self._do(self._is_in(JobState.FAILED))

    async def is_delayed(self) -> bool:
        return await self._do(self._is_in(JobState.DELAYED))

    async def is_active(self) -> bool:
        return await self._do(self._is_in(JobState.ACTIVE))

    async def is_waiting(self) -> bool:
        return await self._do(self._is_in(JobState.WAITING, JobState.PAUSED))

    async def is_waiting_children(self) -> bool:
        return await self._do(self._is_in(JobState.WAITING_CHILDREN))

    async def extend_lock(self, duration: Duration) -> None:
        """Holds the job for `duration` from now; raises `LockLost` when it is no longer ours."""
        await self._do(self._extend_lock(duration))

    async def move_to_delayed(self, until: datetime) -> None:
        """For handlers: ends this attempt and runs the job again at that time. Raises `DelayedError` for the worker."""
        await self._do(self._move_to_delayed(until))

    async def move_to_waiting_children(self, child: JobBase[Any] | ParentRef | None = None) -> bool:
        """For handlers: moves this job to its pending children, until they have finished; False when none is pending.

        When it is True, raise `WaitingChildrenError`: the job runs again when all its children have finished. `child`
        asks whether this one is pending. Raises `FailedChildren` when a child has failed this job.
        """
        return await self._do(self._move_to_waiting_children(child))

    async def get_children_values(self) -> dict[str, Any]:
        """Return values of the children that completed, by their key."""
        return await self._do(self._get_children_values())

    async def get_dependencies(self) -> Dependencies:
        """All children, by how they ended."""
        return await self._do(self._get_dependencies())

    async def remove_child_dependency(self) -> bool:
        """The parent no longer waits for this job; False when it did not."""
        return await self._do(self._remove_child_dependency())

    async def remove_unprocessed_children(self) -> None:
        """Removes the children that have not begun."""
        await self._do(self._remove_unprocessed_children())

    async def wait_until_finished(self, timeout: Duration | None = None) -> Any:
        """The return value of the job; raises `JobFailed`, or `TimeoutError` after `timeout`.

        A job that is removed without a trace, before or while we wait, raises `JobNotFound`.
        """
        seconds = None if timeout is None else to_seconds("timeout", timeout)
        finish = await self._calls.finishes.wait(self.id, seconds)
        if finish.state == "completed":
            return returned(finish.value)
        if finish.state == "missing":
            raise JobNotFound(self.id, command="wait_until_finished")
        raise await self._do(self._failure((finish.value or b"").decode(errors="replace")))
