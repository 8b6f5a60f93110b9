"""The limits of the groups of a queue.

Guarantee: limits that exist are valid. What another program stored and cannot be read has no effect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from toril.errors import InvalidOption, TorilError
from toril.protocol.json_types import JsonObject
from toril.protocol.option_names import knows_its_options
from toril.protocol.option_parts import MAX_COUNT, check_boolean, check_integer
from toril.protocol.worker_options import RateLimit


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupCounts:
    """The jobs of a group that have not ended."""

    waiting: int = 0  # a worker may fetch them
    held: int = 0  # held back by a limit or a pause of their group
    delayed: int = 0  # for another reason
    active: int = 0


@knows_its_options("a field of GroupLimits")
@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLimits:
    """What holds back the jobs of a group. Toril's workers keep to it; a plain BullMQ worker knows nothing of it."""

    concurrency: int | None = None  # jobs of the group that run at once, over all workers
    rate_limit: RateLimit | None = None  # jobs of the group that start in any period of this length
    max_size: int | None = None  # jobs of the group that wait; a further one is refused
    keep_order: bool = False  # a job that is retried is followed by none before it ended; needs concurrency=1

    def __post_init__(self) -> None:
        for name in ("concurrency", "max_size"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_COUNT)
        given: object = self.rate_limit
        if given is not None and not isinstance(given, RateLimit):
            raise InvalidOption("rate_limit", f"is a {type(given).__name__}", "give RateLimit(count, period)")
        if check_boolean("keep_order", self.keep_order) and self.concurrency != 1:
            raise InvalidOption(
                "keep_order", "needs concurrency=1", "give both: jobs that run at once overtake"
            )

    def to_wire(self) -> str:
        """The limits as the scripts read them: JSON, milliseconds, only what was set."""
        wire: JsonObject = {}
        if self.concurrency is not None:
            wire["concurrency"] = self.concurrency
        if self.rate_limit is not None:
            wire |= self.rate_limit.to_wire()
        if self.max_size is not None:
            wire["size"] = self.max_size
        if self.keep_order:
            wire["keepOrder"] = True
        return json.dumps(wire)

    @classmethod
    def from_wire(cls, text: bytes) -> GroupLimits:
        """The limits that a script would apply."""
        try:
            wire = json.loads(text)
            rate = RateLimit(wire["max"], wire["duration"] / 1000) if "max" in wire else None
            return cls(
                concurrency=wire.get("concurrency"),
                rate_limit=rate,
                max_size=wire.get("size"),
                keep_order=wire.get("keepOrder", False),
            )
        except (TorilError, AttributeError, LookupError, TypeError, ValueError):
            return cls()
