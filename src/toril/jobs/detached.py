"""Jobs without a BullMQ queue behind them: of list and stream queues, of tests, and of direct calls.

Guarantee: the attributes are those of a job. Log, progress and data are kept in memory; what needs a server raises
`Detached`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar, cast

from toril.errors import Detached
from toril.jobs._operations import NOW_MS, Operation
from toril.jobs.base import JobBase
from toril.jobs.blocking import BlockingJob
from toril.jobs.calls import KEEP_LOGS, BlockingJobCalls, JobCalls
from toril.jobs.job import Job
from toril.jobs.stored_values import checkpoint_to_json, log_line, progress_to_json
from toril.jobs.type_variables import R, T
from toril.protocol.codec import to_json
from toril.protocol.duration import Duration, datetime_to_ms, to_seconds
from toril.protocol.keys import QueueKeys
from toril.protocol.options import JobOptions
from toril.protocol.record import JobRecord
from toril.protocol.state import JobState

V = TypeVar("V")
Wait = Callable[[float | None], Awaitable[bytes | None]]
"""(time-out in seconds) → the JSON of the result; raises what the wait for a job raises."""


@dataclass(frozen=True, slots=True)
class DetachedCalls:
    """What the jobs of a queue share, without a connection."""

    keys: QueueKeys
    payload: None = None
    keep_logs: int = KEEP_LOGS
    codecs: None = None


@dataclass(slots=True)
class DetachedState(Generic[T]):
    """What a detached job has instead of its keys on a server. The blocking form of a job shares it."""

    lines: list[str] = field(default_factory=list)  # of the log
    state: JobState = JobState.ACTIVE
    wait: Wait | None = None  # how to wait for the result; None: there is none to wait for
    why: str = "the job is not in a queue"  # for errors


def detached_record(
    name: str,
    data: bytes,
    *,
    job_id: str,
    options: JobOptions | None = None,
    attempts_made: int = 0,
    timestamp: datetime | None = None,
) -> JobRecord:
    """The record of a job as its hash would have it."""
    wire = (options or JobOptions()).to_wire()
    created = int(time.time() * 1000) if timestamp is None else datetime_to_ms("timestamp", timestamp)
    fields: Mapping[bytes, bytes] = {
        b"name": name.encode(),
        b"data": data,
        b"opts": to_json(wire),
        b"timestamp": b"%d" % created,
        b"delay": b"%d" % (wire.get("delay") or 0),
        b"priority": b"%d" % (wire.get("priority") or 0),
        b"atm": b"%d" % attempts_made,
    }
    return JobRecord(job_id, dict(fields))


class DetachedBase(JobBase[T, R]):
    """The operations that need no server."""

    __slots__ = ("detached",)

    detached: DetachedState

    def _refresh(self) -> Operation[None]:
        yield from ()

    def _update_data(self, data: T) -> Operation[None]:
        self._change(data=to_json(data))
        if hasattr(self, "_data"):
            del self._data
        yield from ()

    def _update_progress(self, progress: object, message: str | None) -> Operation[None]:
        self._change(progress=progress_to_json(progress))
        if message is not None:
            yield from self._log(message)

    def _save_checkpoint(self, value: object) -> Operation[None]:
        self._change(returnvalue=checkpoint_to_json(value))
        yield from ()

    def _log(self, line: str) -> Operation[int]:
        yield from ()
        self.detached.lines.append(log_line(line))
        return len(self.detached.lines)

    def _get_logs(self, start: int, end: int) -> Operation[list[str]]:
        yield from ()
        return self.detached.lines[start : None if end == -1 else end + 1]

    def _clear_logs(self, keep: int) -> Operation[None]:
        yield from ()
        del self.detached.lines[: len(self.detached.lines) - keep]

    def _get_state(self) -> Operation[JobState]:
        yield from ()
        return self.detached.state

    def _extend_lock(self, duration: Duration) -> Operation[None]:
        to_seconds("duration", duration, positive=True)
        yield from ()

    def _in_memory(self, operation: Operation[V]) -> V:
        result: object = None
        try:
            while True:
                if operation.send(result) is not NOW_MS:
                    raise Detached(self.id, self.detached.why)
                result = int(time.time() * 1000)
        except StopIteration as end:
            return cast("V", end.value)


class DetachedJob(DetachedBase[T, R], Job[T, R]):
    """A job in an event loop, without a server."""

    __slots__ = ()

    def __init__(self, record: JobRecord, queue: str, state: DetachedState | None = None) -> None:
        calls = cast("JobCalls", DetachedCalls(QueueKeys(queue)))
        super().__init__(record, calls)
        self.detached = state or DetachedState()

    async def _run(self, operation: Operation[V]) -> V:
        return self._in_memory(operation)

    async def _finished(self, timeout: Duration | None) -> bytes | None:
        if self.detached.wait is None:
            raise Detached(self.id, self.detached.why)
        return await self.detached.wait(None if timeout is None else to_seconds("timeout", timeout))


class BlockingCaller(Protocol):
    """Awaits coroutine functions in the thread of an event loop: `sync.App`."""

    def call(self, function: Wait, seconds: float | None, /) -> bytes | None:
        """Returns what the coroutine returned."""


class DetachedBlockingJob(DetachedBase[T, R], BlockingJob[T, R]):
    """A job in a thread, without a server. `wait` runs the wait for its result and blocks."""

    __slots__ = ("_caller",)

    def __init__(
        self,
        record: JobRecord,
        queue: str,
        state: DetachedState | None = None,
        caller: BlockingCaller | None = None,
    ) -> None:
        calls = cast("BlockingJobCalls", DetachedCalls(QueueKeys(queue)))
        super().__init__(record, calls)
        self.detached = state or DetachedState()
        self._caller = caller  # None: nobody can wait for the result

    def _run(self, operation: Operation[V]) -> V:
        return self._in_memory(operation)

    def _finished(self, timeout: Duration | None) -> bytes | None:
        if self.detached.wait is None or self._caller is None:
            raise Detached(self.id, self.detached.why)
        seconds = None if timeout is None else to_seconds("timeout", timeout)
        return self._caller.call(self.detached.wait, seconds)


def blocking_form(job: DetachedJob[T, R], caller: BlockingCaller | None = None) -> DetachedBlockingJob[T, R]:
    """The same job with blocking methods."""
    return DetachedBlockingJob(job.record, job.queue_name, job.detached, caller)
