"""The parts of job options that are objects of their own, and the checks they share.

Guarantee: like `JobOptions`, a part that exists is valid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from toril.errors import InvalidOption
from toril.protocol.duration import Duration, to_ms, to_seconds
from toril.protocol.given_fields import default, no_seconds, take_defaults
from toril.protocol.json_types import JsonObject
from toril.protocol.keys import check_text
from toril.protocol.option_names import knows_its_options

if TYPE_CHECKING:
    from toril.protocol.given_fields import OptionalSeconds

MAX_COUNT = 2**31 - 1  # more is a mistake; Lua's numbers are exact far beyond


def check_integer(name: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(name, f"is a {type(value).__name__}", f"give an integer from {least} to {most}")
    if not least <= value <= most:
        raise InvalidOption(name, f"is {value}", f"give an integer from {least} to {most}")
    return value


def check_boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(name, f"is a {type(value).__name__}", "give True or False")
    return value


@knows_its_options("a field of KeepJobs")
@dataclass(frozen=True, kw_only=True, slots=True)
class KeepJobs:
    """How many finished jobs stay: the newest `count`, none older than `age`, at most `limit` removed per finish.

    `age` is whole seconds; a part of a second is rounded up.
    """

    age: OptionalSeconds = no_seconds()
    count: int | None = default(None)
    limit: int | None = default(None)

    def __post_init__(self) -> None:
        given = take_defaults(self, ("age", "count", "limit"))
        if not {"age", "count"} & set(given):
            raise InvalidOption("keep", "has neither age nor count", "give at least one of them")
        if self.age is not None:
            object.__setattr__(self, "age", float(math.ceil(to_seconds("keep.age", self.age))))
        for name in ("count", "limit"):
            if name in given:
                check_integer(f"keep.{name}", getattr(self, name), 0, MAX_COUNT)

    def to_wire(self) -> JsonObject:
        """BullMQ's spelling; the age is in seconds there."""
        wire: JsonObject = {}
        if self.age is not None:
            wire["age"] = int(self.age)
        if self.count is not None:
            wire["count"] = self.count
        if self.limit is not None:
            wire["limit"] = self.limit
        return wire


Removal: TypeAlias = bool | int | KeepJobs
"""True: remove the job when it finishes. A number: keep that many. `KeepJobs`: keep by age and count."""


@knows_its_options("a field of Deduplication")
@dataclass(frozen=True, slots=True)
class Deduplication:
    """Jobs of the same `id` are one job: until the first has finished, or for `ttl`.

    `extend` starts the `ttl` again with each duplicate; `replace` puts the newest data in place of a delayed job;
    `reschedule` starts the delay of a delayed job again and keeps its data; `keep_last_if_active` runs the newest of
    the duplicates that were added while the job was active, after that job. The last two are of BullMQ 6.
    """

    id: str
    ttl: OptionalSeconds = no_seconds()
    extend: bool = False
    replace: bool = False
    reschedule: bool = False
    keep_last_if_active: bool = False
    # The delay of a job without one of its own, set by `debounce`; the fields above are Node's.
    implied_delay: float | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_text("deduplication.id", self.id)
        if "ttl" in take_defaults(self, ("ttl",)):
            object.__setattr__(self, "ttl", to_seconds("deduplication.ttl", self.ttl, positive=True))
        for name in ("extend", "replace", "reschedule", "keep_last_if_active"):
            check_boolean(f"deduplication.{name}", getattr(self, name))
        if self.extend and self.ttl is None:
            raise InvalidOption("deduplication.extend", "has nothing to extend", "give a ttl")
        if self.reschedule and self.replace:
            problem, remedy = "has no effect together with replace", "choose one of them"
            raise InvalidOption("deduplication.reschedule", problem, remedy)
        if self.keep_last_if_active and self.ttl is not None:
            problem, remedy = "has no effect together with keep_last_if_active", "leave it out"
            raise InvalidOption("deduplication.ttl", problem, remedy)

    @classmethod
    def simple(cls, id: str) -> Deduplication:
        """Duplicates are dropped until the first job has finished."""
        return cls(id)

    @classmethod
    def throttle(cls, id: str, ttl: Duration) -> Deduplication:
        """Duplicates are dropped for `ttl`."""
        return cls(id, ttl)

    @classmethod
    def debounce(cls, id: str, ttl: Duration) -> Deduplication:
        """Only the last of a burst runs: each duplicate replaces the delayed one and starts `ttl` again.

        Without a `delay` of its own the job is delayed by `ttl`: a job that runs at once cannot be replaced.
        """
        made = cls(id, ttl, extend=True, replace=True)
        object.__setattr__(made, "implied_delay", made.ttl)
        return made

    @classmethod
    def keep_last(cls, id: str) -> Deduplication:
        """At most one job is active and one waits: of the duplicates of an active job, the newest runs after it."""
        return cls(id, keep_last_if_active=True)

    @classmethod
    def from_wire(cls, wire: JsonObject) -> Deduplication:
        """Of a stored job; a field that has no effect beside another one is left out."""
        keeps_last, replace = bool(wire.get("keepLastIfActive")), bool(wire.get("replace"))
        ttl = None if keeps_last or not wire.get("ttl") else wire["ttl"] / 1000
        return cls(
            wire["id"],
            ttl,
            extend=bool(wire.get("extend")) and ttl is not None,
            replace=replace,
            reschedule=bool(wire.get("reschedule")) and not replace,
            keep_last_if_active=keeps_last,
        )

    def to_wire(self) -> JsonObject:
        """BullMQ's spelling, in milliseconds."""
        wire: JsonObject = {"id": self.id}
        if self.ttl is not None:
            wire["ttl"] = to_ms(self.ttl)
        for name, spelling in _DEDUPLICATION_MODES.items():
            if getattr(self, name):
                wire[spelling] = True
        return wire


_DEDUPLICATION_MODES = {
    "extend": "extend",
    "replace": "replace",
    "reschedule": "reschedule",
    "keep_last_if_active": "keepLastIfActive",
}


@dataclass(frozen=True, slots=True)
class ParentRef:
    """The job that waits for this one. `queue_key` is `QueueKeys.qualified` of its queue, e.g. `bull:reports`."""

    id: str
    queue_key: str

    def __post_init__(self) -> None:
        check_text("parent.id", self.id)
        check_text("parent.queue_key", self.queue_key)

    @property
    def key(self) -> str:
        """The parent's hash."""
        return f"{self.queue_key}:{self.id}"

    def to_wire(self) -> dict[str, str]:
        """As options carry it. The job's hash spells the queue differently: see `JobOptions.parent_wire`."""
        return {"id": self.id, "queue": self.queue_key}
