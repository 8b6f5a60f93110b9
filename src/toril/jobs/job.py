"""A job in an event loop.

Guarantee: every operation takes one or two round trips, and raises subclasses of `TorilError`.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, TypeVar

from toril.commands.manage import ResetAttempts
from toril.commands.read import DependencyKind
from toril.errors import JobNotFound, TorilError
from toril.jobs import dependencies
from toril.jobs._failures import read_failure
from toril.jobs._operations import Operation, run_operation
from toril.jobs._payloads import decode_result
from toril.jobs.base import FinalState, JobBase
from toril.jobs.calls import JobCalls
from toril.jobs.dependencies import Dependencies, DependencyCounts, DependencyPage
from toril.jobs.stored_values import returned
from toril.jobs.type_variables import R, T
from toril.jobs.worker_hint import HINT_SECONDS, no_worker
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.options import ParentRef
from toril.protocol.state import JobState

V = TypeVar("V")


class Job(JobBase[T, R]):
    """A job that was added, found or fetched. Attributes are as last read; `refresh` reads them again."""

    __slots__ = ()

    _calls: JobCalls

    async def _run(self, operation: Operation[V]) -> V:
        return await run_operation(self._calls.transport, operation)

    async def refresh(self) -> None:
        """Reads the job again; raises `JobNotFound` when it was removed."""
        await self._run(self._refresh())

    async def update_data(self, data: T) -> None:
        """Replaces the payload."""
        await self._run(self._update_data(data))

    async def update_progress(self, progress: object, message: str | None = None) -> None:
        """Sets the progress: a number from 0 to 100 or an object. `message` becomes a log line."""
        await self._run(self._update_progress(progress, message))

    async def save_checkpoint(self, value: object) -> None:
        """For handlers: stores where this job stands; another attempt finds it in `checkpoint`.

        A result replaces it. Raises `LockLost` when another worker may have the job.
        """
        await self._run(self._save_checkpoint(value))

    async def log(self, line: str) -> int:
        """Appends a line to the job's log; returns how many lines it has now."""
        return await self._run(self._log(line))

    async def get_logs(self, start: int = 0, end: int = -1) -> list[str]:
        """Returns the lines of the log, oldest first."""
        return await self._run(self._get_logs(start, end))

    async def clear_logs(self, keep: int = 0) -> None:
        """Removes all lines but the newest `keep`."""
        await self._run(self._clear_logs(keep))

    async def change_delay(self, delay: Duration) -> None:
        """Makes a delayed job due `delay` from now."""
        await self._run(self._change_delay(delay))

    async def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Changes the priority of a waiting job; 0 means none."""
        await self._run(self._change_priority(priority, lifo))

    async def promote(self) -> None:
        """Makes a delayed job ready now."""
        await self._run(self._promote())

    async def retry(
        self,
        state: FinalState = "failed",
        *,
        reset_attempts_made: bool = False,
        reset_attempts_started: bool = False,
    ) -> None:
        """Sends a finished job back to the queue; its attempts are counted from the beginning if asked."""
        reset = ResetAttempts(made=reset_attempts_made, started=reset_attempts_started)
        await self._run(self._retry(state, reset))

    async def remove(self, *, children: bool = True) -> None:
        """Removes the job and its children; raises `JobLocked` while one of them is being worked on."""
        await self._run(self._remove(children))

    async def get_state(self) -> JobState:
        """Returns the state of the job."""
        return await self._run(self._get_state())

    async def is_completed(self) -> bool:
        return await self._run(self._is_in(JobState.COMPLETED))

    async def is_failed(self) -> bool:
        return await self._run(self._is_in(JobState.FAILED))

    async def is_delayed(self) -> bool:
        return await self._run(self._is_in(JobState.DELAYED))

    async def is_active(self) -> bool:
        return await self._run(self._is_in(JobState.ACTIVE))

    async def is_waiting(self) -> bool:
        return await self._run(self._is_in(JobState.WAITING, JobState.PAUSED))

    async def is_waiting_children(self) -> bool:
        return await self._run(self._is_in(JobState.WAITING_CHILDREN))

    async def extend_lock(self, duration: Duration) -> None:
        """Extends the lock to `duration` from now; raises `LockLost` when another worker may have the job."""
        await self._run(self._extend_lock(duration))

    async def move_to_delayed(self, until: datetime) -> None:
        """For handlers: ends this attempt and runs the job again at that time. Raises `DelayedError` for the worker."""
        await self._run(self._move_to_delayed(until))

    async def move_to_waiting_children(self, child: JobBase | ParentRef | None = None) -> bool:
        """For handlers: moves this job to waiting-children; returns False when no child is pending.

        When it returns True, raise `WaitingChildrenError`: the job runs again when all its children have finished. With
        `child`, only this child counts. Raises `FailedChildren` when a child has failed this job.
        """
        return await self._run(self._move_to_waiting_children(child))

    async def get_children_values(self) -> dict[str, Any]:
        """Returns the return values of the children that completed, by their keys."""
        return await self._run(dependencies.get_children_values(self._calls, self.id))

    async def get_dependency_counts(self) -> DependencyCounts:
        """Returns how many children it has, by what became of them."""
        return await self._run(dependencies.get_dependency_counts(self.keys, self.id))

    async def get_dependencies_page(
        self, kind: DependencyKind, cursor: str = "0", count: int = 100
    ) -> DependencyPage:
        """Returns about `count` children of one kind, for jobs with many: processed, unprocessed, ignored or failed.

        A page may be empty before the last one, whose `cursor` is "0".
        """
        return await self._run(dependencies.get_dependencies_page(self._calls, self.id, kind, cursor, count))

    async def get_dependencies(self) -> Dependencies:
        """Returns all children, by how they ended."""
        return await self._run(dependencies.get_dependencies(self._calls, self.id))

    async def remove_child_dependency(self) -> bool:
        """Makes the parent no longer wait for this job; returns False when it did not."""
        return await self._run(self._remove_child_dependency())

    async def remove_unprocessed_children(self) -> None:
        """Removes the children that have not begun."""
        await self._run(self._remove_unprocessed_children())

    async def wait_until_finished(self, timeout: Duration | None = None) -> Any:
        """Waits for the job and returns its return value; raises `JobFailed`, or `TimeoutError` after `timeout`.

        Raises `JobNotFound` if the job was removed, also while it waits.
        """
        return returned(await self._finished(timeout))

    async def result(self, timeout: Duration | None = None) -> R:
        """Waits like `wait_until_finished`; returns the result as the type that the task returns."""
        return self._typed_result(await self._finished(timeout))

    async def _no_worker(self) -> str:
        """What to say of a job that did not finish: whether its queue has a worker; empty if that is not known."""
        try:
            async with asyncio.timeout(HINT_SECONDS):
                return await self._run(no_worker(self.keys))
        except (TorilError, TimeoutError):
            return ""

    async def _finished(self, timeout: Duration | None) -> bytes | None:
        """Waits for the job; returns the JSON of its return value."""
        seconds = None if timeout is None else to_seconds("timeout", timeout)
        try:
            finish = await self._calls.finishes.wait(self.id, seconds)
        except TimeoutError as error:
            raise TimeoutError(f"{error}{await self._no_worker()}") from None
        if finish.state == "completed":
            return await self._run(decode_result(self._calls, self.name, finish.value))
        if finish.state == "missing":
            raise JobNotFound(self.id, command="wait_until_finished")
        raise await self._run(read_failure(self.keys, self.id, finish.value or b""))
