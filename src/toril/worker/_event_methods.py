"""`on` and `off` of workers, known to type checkers: each event with what its callback gets.

The job is what the handler got: a `Job`, a `sync.Job`, or an `Envelope` on the other kinds of queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, overload

from toril.errors import TorilError
from toril.worker._events import Callback, WorkerEvent

OfNothing: TypeAlias = Callable[[], Any]
OfJob: TypeAlias = Callable[[Any], Any]
OfResult: TypeAlias = Callable[[Any, Any], Any]
OfFailure: TypeAlias = Callable[[Any, BaseException], Any]
OfRetry: TypeAlias = Callable[[Any, BaseException, float], Any]
OfJobIds: TypeAlias = Callable[[Sequence[str]], Any]
OfLoss: TypeAlias = Callable[[TorilError], Any]
OfSeconds: TypeAlias = Callable[[float], Any]
OfError: TypeAlias = Callable[[BaseException], Any]


class EventMethods:
    """Something that tells its listeners what happens in a worker."""

    @overload
    def on(
        self, event: Literal["ready", "drained", "paused", "resumed", "closed"], callback: OfNothing
    ) -> OfNothing: ...
    @overload
    def on(self, event: Literal["active", "lock_lost"], callback: OfJob) -> OfJob: ...
    @overload
    def on(self, event: Literal["completed"], callback: OfResult) -> OfResult: ...
    @overload
    def on(self, event: Literal["failed"], callback: OfFailure) -> OfFailure: ...
    @overload
    def on(self, event: Literal["retrying"], callback: OfRetry) -> OfRetry: ...
    @overload
    def on(self, event: Literal["stalled"], callback: OfJobIds) -> OfJobIds: ...
    @overload
    def on(self, event: Literal["disconnected"], callback: OfLoss) -> OfLoss: ...
    @overload
    def on(self, event: Literal["reconnected"], callback: OfSeconds) -> OfSeconds: ...
    @overload
    def on(self, event: Literal["error"], callback: OfError) -> OfError: ...
    def on(self, event: WorkerEvent, callback: Callback) -> Callback:
        """Calls `callback` whenever `event` happens in this worker; a function, or one that makes a coroutine.

        ready(), active(job), completed(job, result), failed(job, error), retrying(job, error, delay),
        stalled(job_ids), lock_lost(job), drained(), disconnected(error), reconnected(seconds), paused(), resumed(),
        error(error), closed().
        """
        self._listen(event, callback)
        return callback

    def off(self, event: WorkerEvent, callback: Callback) -> None:
        """Calls back no more."""
        self._unlisten(event, callback)

    def _listen(self, event: WorkerEvent, callback: Callback) -> None:
        raise NotImplementedError

    def _unlisten(self, event: WorkerEvent, callback: Callback) -> None:
        raise NotImplementedError
