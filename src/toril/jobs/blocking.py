"""A job in a thread or a process: the methods of `Job`, blocking.

Guarantee: it can be used from any thread, without an event loop.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, TypeVar

from toril.commands import read
from toril.commands.manage import ResetAttempts
from toril.commands.read import DependencyKind
from toril.errors import JobNotFound, TorilError
from toril.jobs import dependencies
from toril.jobs._failures import read_failure
from toril.jobs._operations import Operation, run_operation_blocking
from toril.jobs._payloads import decode_result
from toril.jobs.base import FinalState, JobBase
from toril.jobs.calls import BlockingJobCalls
from toril.jobs.dependencies import Dependencies, DependencyCounts, DependencyPage
from toril.jobs.stored_values import returned
from toril.jobs.type_variables import R, T
from toril.jobs.worker_hint import no_worker
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.options import ParentRef
from toril.protocol.record import JobRecord
from toril.protocol.state import JobState

V = TypeVar("V")

# How long one read blocks. After it, the state is read: the job's event may have been trimmed.
_BLOCK_SECONDS = 5.0


class BlockingJob(JobBase[T, R]):
    """A job that was added, found or fetched. Attributes are as last read; `refresh` reads them again."""

    __slots__ = ()

    _calls: BlockingJobCalls

    def __init__(
        self, record: JobRecord, calls: BlockingJobCalls, token: str | None = None, *, added: bool = True
    ) -> None:
        super().__init__(record, calls, token, added=added)

    def _run(self, operation: Operation[V]) -> V:
        return run_operation_blocking(self._calls.transport, operation)

    def refresh(self) -> None:
        """Reads the job again; raises `JobNotFound` when it was removed."""
        self._run(self._refresh())

    def update_data(self, data: T) -> None:
        """Replaces the payload."""
        self._run(self._update_data(data))

    def update_progress(self, progress: object, message: str | None = None) -> None:
        """Sets the progress: a number from 0 to 100 or an object. `message` becomes a log line."""
        self._run(self._update_progress(progress, message))

    def save_checkpoint(self, value: object) -> None:
        """For handlers: stores where this job stands; another attempt finds it in `checkpoint`.

        A result replaces it. Raises `LockLost` when another worker may have the job.
        """
        self._run(self._save_checkpoint(value))

    def log(self, line: str) -> int:
        """Appends a line to the job's log; returns how many lines it has now."""
        return self._run(self._log(line))

    def get_logs(self, start: int = 0, end: int = -1) -> list[str]:
        """Returns the lines of the log, oldest first."""
        return self._run(self._get_logs(start, end))

    def clear_logs(self, keep: int = 0) -> None:
        """Removes all lines but the newest `keep`."""
        self._run(self._clear_logs(keep))

    def change_delay(self, delay: Duration) -> None:
        """Makes a delayed job due `delay` from now."""
        self._run(self._change_delay(delay))

    def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Changes the priority of a waiting job; 0 means none."""
        self._run(self._change_priority(priority, lifo))

    def promote(self) -> None:
        """Makes a delayed job ready now."""
        self._run(self._promote())

    def retry(
        self,
        state: FinalState = "failed",
        *,
        reset_attempts_made: bool = False,
        reset_attempts_started: bool = False,
    ) -> None:
        """Sends a finished job back to the queue; its attempts are counted from the beginning if asked."""
        reset = ResetAttempts(made=reset_attempts_made, started=reset_attempts_started)
        self._run(self._retry(state, reset))

    def remove(self, *, children: bool = True) -> None:
        """Removes the job and its children; raises `JobLocked` while one of them is being worked on."""
        self._run(self._remove(children))

    def get_state(self) -> JobState:
        """Returns the state of the job."""
        return self._run(self._get_state())

    def is_completed(self) -> bool:
        return self._run(self._is_in(JobState.COMPLETED))

    def is_failed(self) -> bool:
        return self._run(self._is_in(JobState.FAILED))

    def is_delayed(self) -> bool:
        return self._run(self._is_in(JobState.DELAYED))

    def is_active(self) -> bool:
        return self._run(self._is_in(JobState.ACTIVE))

    def is_waiting(self) -> bool:
        return self._run(self._is_in(JobState.WAITING, JobState.PAUSED))

    def is_waiting_children(self) -> bool:
        return self._run(self._is_in(JobState.WAITING_CHILDREN))

    def extend_lock(self, duration: Duration) -> None:
        """Extends the lock to `duration` from now; raises `LockLost` when another worker may have the job."""
        self._run(self._extend_lock(duration))

    def move_to_delayed(self, until: datetime) -> None:
        """For handlers: ends this attempt and runs the job again at that time. Raises `DelayedError` for the worker."""
        self._run(self._move_to_delayed(until))

    def move_to_waiting_children(self, child: JobBase | ParentRef | None = None) -> bool:
        """For handlers: moves this job to waiting-children; returns False when no child is pending.

        When it returns True, raise `WaitingChildrenError`: the job runs again when all its children have finished. With
        `child`, only this child counts. Raises `FailedChildren` when a child has failed this job.
        """
        return self._run(self._move_to_waiting_children(child))

    def get_children_values(self) -> dict[str, Any]:
        """Returns the return values of the children that completed, by their keys."""
        return self._run(dependencies.get_children_values(self._calls, self.id))

    def get_dependency_counts(self) -> DependencyCounts:
        """Returns how many children it has, by what became of them."""
        return self._run(dependencies.get_dependency_counts(self.keys, self.id))

    def get_dependencies_page(
        self, kind: DependencyKind, cursor: str = "0", count: int = 100
    ) -> DependencyPage:
        """Returns about `count` children of one kind, for jobs with many: processed, unprocessed, ignored or failed.

        A page may be empty before the last one, whose `cursor` is "0".
        """
        return self._run(dependencies.get_dependencies_page(self._calls, self.id, kind, cursor, count))

    def get_dependencies(self) -> Dependencies:
        """Returns all children, by how they ended."""
        return self._run(dependencies.get_dependencies(self._calls, self.id))

    def remove_child_dependency(self) -> bool:
        """Makes the parent no longer wait for this job; returns False when it did not."""
        return self._run(self._remove_child_dependency())

    def remove_unprocessed_children(self) -> None:
        """Removes the children that have not begun."""
        self._run(self._remove_unprocessed_children())

    def wait_until_finished(self, timeout: Duration | None = None) -> Any:
        """Waits for the job and returns its return value; raises `JobFailed`, or `TimeoutError` after `timeout`.

        Raises `JobNotFound` if the job was removed, also while it waits.
        """
        return returned(self._finished(timeout))

    def result(self, timeout: Duration | None = None) -> R:
        """Waits like `wait_until_finished`; returns the result as the type that the task returns."""
        return self._typed_result(self._finished(timeout))

    def _finished(self, timeout: Duration | None) -> bytes | None:
        """Waits for the job; returns the JSON of its return value."""
        seconds = None if timeout is None else to_seconds("timeout", timeout)
        finish = self._wait(None if seconds is None else time.monotonic() + seconds)
        if finish.state == "completed":
            return self._run(decode_result(self._calls, self.name, finish.value))
        if finish.state == "missing":
            raise JobNotFound(self.id, command="wait_until_finished")
        raise self._run(read_failure(self.keys, self.id, finish.value or b""))

    def _no_worker(self) -> str:
        try:
            return self._run(no_worker(self.keys))
        except TorilError:
            return ""

    def _wait(self, deadline: float | None) -> read.Finished:
        """Reads the last event id before the state, so that no event in between is missed."""
        transport, keys = self._calls.transport, self._calls.keys
        after = transport.run(read.last_event_id(keys))
        finish = transport.run(read.is_finished(keys, self.id))
        while finish.state == "pending":
            block = _BLOCK_SECONDS if deadline is None else min(_BLOCK_SECONDS, deadline - time.monotonic())
            if block <= 0:
                raise TimeoutError(f"job {self.id} did not finish in time{self._no_worker()}")
            command = read.read_events([keys], [after], block_ms=max(1, int(block * 1000)), count=500)
            entries = transport.run_blocking(command, block).get(keys.events)
            if not entries:  # the job's event may have been trimmed, or the stream deleted
                finish = transport.run(read.is_finished(keys, self.id))
                continue
            after = entries[-1][0]
            finishes = (read.finished_by_event(self.id, fields) for _, fields in entries)
            finish = next((one for one in finishes if one is not None), finish)
        return finish
