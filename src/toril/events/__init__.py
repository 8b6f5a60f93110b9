"""The events of a queue: typed, resumable, with gaps reported."""

from __future__ import annotations

from toril.events._finish_waiter import FinishWaiter
from toril.events._stream import EventStream, Gap
from toril.events.queue_events import QueueEvents

__all__ = ["EventStream", "FinishWaiter", "Gap", "QueueEvents"]
