"""The type of `Worker.on`: each event with the parameters of its callback.

The job is what the handler got: a `Job`, a `sync.Job`, or an `Envelope` on list and stream queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, overload

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


class Subscribe(Protocol):
    """Registers a callback for an event, and returns the callback."""

    @overload
    def __call__(
        self,
        event: Literal["ready", "drained", "paused", "resumed", "closing", "closed"],
        callback: OfNothing,
    ) -> OfNothing: ...
    @overload
    def __call__(self, event: Literal["active", "lock_lost"], callback: OfJob) -> OfJob: ...
    @overload
    def __call__(self, event: Literal["completed", "progress"], callback: OfResult) -> OfResult: ...
    @overload
    def __call__(self, event: Literal["failed"], callback: OfFailure) -> OfFailure: ...
    @overload
    def __call__(self, event: Literal["retrying"], callback: OfRetry) -> OfRetry: ...
    @overload
    def __call__(self, event: Literal["stalled", "lock_renewal_failed"], callback: OfJobIds) -> OfJobIds: ...
    @overload
    def __call__(self, event: Literal["disconnected"], callback: OfLoss) -> OfLoss: ...
    @overload
    def __call__(self, event: Literal["reconnected"], callback: OfSeconds) -> OfSeconds: ...
    @overload
    def __call__(self, event: Literal["error"], callback: OfError) -> OfError: ...


__all__ = ["Callback", "Subscribe", "WorkerEvent"]
