"""A job in a thread or a process: the same names as `Job`, blocking.

Guarantee: safe to use from any thread; nothing here needs an event loop.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from datetime import datetime
from typing import Any, TypeVar

from toril.commands import read
from toril.errors import JobNotFound
from toril.jobs._operations import run_steps_blocking
from toril.jobs.base import Dependencies, FinalState, JobBase, T, returned
from toril.jobs.calls import BlockingJobCalls
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.options import ParentRef
from toril.protocol.record import JobRecord
from toril.protocol.state import JobState

V = TypeVar("V")

# How long one read blocks: a job whose event was trimmed is noticed after it.
_BLOCK_SECONDS = 5.0


class BlockingJob(JobBase[T]):
    """A job that was added, found or taken. Attributes are as last seen; `refresh` looks again."""

    __slots__ = ()

    _calls: BlockingJobCalls

    def __init__(
        self, record: JobRecord, calls: BlockingJobCalls, token: str | None = None, *, added: bool = True
    ) -> None:
        super().__init__(record, calls, token, added=added)

    def _do(self, steps: Generator[Any, Any, V]) -> V:
        return run_steps_blocking(self._calls.transport, steps)

    def refresh(self) -> None:
        """Reads the job again; raises `JobNotFound` when it was removed."""
        self._do(self._refresh())

    def update_data(self, data: T) -> None:
        """Replaces the payload."""
        self._do(self._update_data(data))

    def update_progress(self, progress: Any, message: str | None = None) -> None:
        """Says how far the job is: a number from 0 to 100 or an object of your own. `message` becomes a log line."""
        self._do(self._update_progress(progress, message))

    def log(self, line: str) -> int:
        """Appends a line to the job's log; returns how many lines it has now."""
        return self._do(self._log(line))

    def get_logs(self, start: int = 0, end: int = -1) -> list[str]:
        """The lines of the log, oldest first."""
        return self._do(self._get_logs(start, end))

    def clear_logs(self, keep: int = 0) -> None:
        """Removes all lines but the newest `keep`."""
        self._do(self._clear_logs(keep))

    def change_delay(self, delay: Duration) -> None:
        """Makes a delayed job due `delay` from now."""
        self._do(self._change_delay(delay))

    def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Gives a waiting job another priority; 0 puts it among those without one."""
        self._do(self._change_priority(priority, lifo))

    def promote(self) -> None:
        """Makes a delayed job ready now."""
        self._do(self._promote())

    def retry(self, state: FinalState = "failed") -> None:
        """Sends a finished job back to the queue."""
        self._do(self._retry(state))

    def remove(self, *, children: bool = True) -> None:
        """Removes the job and its children; raises `JobLocked` while one of them is being worked on."""
        self._do(self._remove(children))

    def get_state(self) -> JobState:
        """Where the job is."""
        return self._do(self._get_state())

    def is_completed(self) -> bool:
        return self._do(self._is_in(JobState.COMPLETED))

    def is_failed(self) -> bool:
        return self._do(self._is_in(JobState.FAILED))

    def is_delayed(self) -> bool:
        return self._do(self._is_in(JobState.DELAYED))

    def is_active(self) -> bool:
        return self._do(self._is_in(JobState.ACTIVE))

    def is_waiting(self) -> bool:
        return self._do(self._is_in(JobState.WAITING, JobState.PAUSED))

    def is_waiting_children(self) -> bool:
        return self._do(self._is_in(JobState.WAITING_CHILDREN))

    def extend_lock(self, duration: Duration) -> None:
        """Holds the job for `duration` from now; raises `LockLost` when it is no longer ours."""
        self._do(self._extend_lock(duration))

    def move_to_delayed(self, until: datetime) -> None:
        """For handlers: ends this attempt and runs the job again at that time. Raises `DelayedError` for the worker."""
        self._do(self._move_to_delayed(until))

    def move_to_waiting_children(self, child: JobBase[Any] | ParentRef | None = None) -> bool:
        """For handlers: moves this job to its pending children, until they have finished; False when none is pending.

        When it is True, raise `WaitingChildrenError`: the job runs again when all its children have finished. `child`
        asks whether this one is pending. Raises `FailedChildren` when a child has failed this job.
        """
        return self._do(self._move_to_waiting_children(child))

    def get_children_values(self) -> dict[str, Any]:
        """Return values of the children that completed, by their key."""
        return self._do(self._get_children_values())

    def get_dependencies(self) -> Dependencies:
        """All children, by how they ended."""
        return self._do(self._get_dependencies())

    def remove_child_dependency(self) -> bool:
        """The parent no longer waits for this job; False when it did not."""
        return self._do(self._remove_child_dependency())

    def remove_unprocessed_children(self) -> None:
        """Removes the children that have not begun."""
        self._do(self._remove_unprocessed_children())

    def wait_until_finished(self, timeout: Duration | None = None) -> Any:
        """The return value of the job; raises `JobFailed`, or `TimeoutError` after `timeout`.

        A job that is removed without a trace, before or while we wait, raises `JobNotFound`.
        """
        seconds = None if timeout is None else to_seconds("timeout", timeout)
        finish = self._wait(None if seconds is None else time.monotonic() + seconds)
        if finish.state == "completed":
            return returned(finish.value)
        if finish.state == "missing":
            raise JobNotFound(self.id, command="wait_until_finished")
        raise self._do(self._failure((finish.value or b"").decode(errors="replace")))

    def _wait(self, deadline: float | None) -> read.Finished:
        """Finds its place among the events first and asks for the state then, so that no end is missed."""
        transport, keys = self._calls.transport, self._calls.keys
        after = transport.run(read.last_event_id(keys))
        finish = transport.run(read.is_finished(keys, self.id))
        while finish.state == "pending":
            block = _BLOCK_SECONDS if deadline is None else min(_BLOCK_SECONDS, deadline - time.monotonic())
            if block <= 0:
                raise TimeoutError(f"job {self.id} did not finish in time")
            command = read.read_events([keys], [after], block_ms=max(1, int(block * 1000)), count=500)
            entries = transport.run_blocking(command, block).get(keys.events)
            if (
                not entries
            ):  # a silence: the job may have ended without a word, on a trimmed or deleted stream
                finish = transport.run(read.is_finished(keys, self.id))
                continue
            after = entries[-1][0]
            told = (read.finished_by_event(self.id, fields) for _, fields in entries)
            finish = next((end for end in told if end is not None), finish)
        return finish
