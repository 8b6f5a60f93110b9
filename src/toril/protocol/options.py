"""The options of a job.

Guarantee: options that exist are valid. Every field is checked when the object is made, with the field and a
remedy in the error, so nothing invalid reaches Redis; and `to_wire` gives exactly what Node's BullMQ 5.62.0
would store for the same options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias, TypedDict, cast

from toril.errors import InvalidOption, TorilError
from toril.protocol.backoff import Backoff
from toril.protocol.codec import pack, to_json
from toril.protocol.duration import Duration, datetime_to_ms, ms_to_datetime, to_ms, to_seconds
from toril.protocol.given_fields import default, no_seconds, seconds, take_defaults
from toril.protocol.json_types import JsonFields, JsonObject, JsonValue
from toril.protocol.keys import check_job_id, check_text
from toril.protocol.option_names import knows_its_options, refuse_unknown
from toril.protocol.option_parts import (
    MAX_COUNT,
    Deduplication,
    KeepJobs,
    ParentRef,
    Removal,
    check_boolean,
    check_integer,
)

if TYPE_CHECKING:
    from toril.protocol.given_fields import OptionalSeconds, Seconds

__all__ = [
    "MAX_PRIORITY",
    "ON_FAILURE",
    "Deduplication",
    "JobOptions",
    "JobOptionsDict",
    "KeepJobs",
    "NewJob",
    "ParentRef",
    "Removal",
    "merge",
]

MAX_PRIORITY = 2**21  # a priority is multiplied by 2^32 in a score, which must stay an exact number
MAX_CARRIED_BYTES = 64 * 1024  # what may travel in options beside their own fields: trace context, repeat


# --- checks, each returning the value as it is stored ---------------------------------------------------------


def _of(kind: type, example: str) -> Check:
    def check(name: str, value: object) -> object:
        if not isinstance(value, kind):
            raise InvalidOption(name, f"is a {type(value).__name__}", f"give {example}")
        return value

    return check


def _backoff(name: str, value: object) -> Backoff | None:
    """Seconds are short for a fixed backoff, 0 for none."""
    if value is None or isinstance(value, Backoff):
        return value
    if isinstance(value, Mapping):
        raise InvalidOption(
            name, "is a mapping", "use Backoff.fixed(seconds) or Backoff.exponential(seconds)"
        )
    return Backoff.fixed(cast(Duration, value))


def _removal(name: str, value: object) -> Removal:
    return value if isinstance(value, (bool, KeepJobs)) else check_integer(name, value, 0, MAX_COUNT)


def _count(least: int, most: int = MAX_COUNT) -> Callable[[str, object], int]:
    return lambda name, value: check_integer(name, value, least, most)


def _time(name: str, value: object) -> datetime:
    datetime_to_ms(name, value)
    return cast(datetime, value)


def _metadata(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidOption(
            name, f"is a {type(value).__name__}", "give the propagator's carrier as a JSON string"
        )
    _bounded(name, len(to_json(value, field=name)))
    return value


def _expiry(name: str, value: Duration) -> float:
    return to_seconds(name, value, positive=True)


def _repeat(name: str, value: object) -> JsonFields:
    if not isinstance(value, Mapping):
        raise InvalidOption(name, f"is a {type(value).__name__}", "give a mapping")
    _bounded(name, len(to_json(value, field=name)))
    return value


def _bounded(name: str, size: int) -> None:
    if size > MAX_CARRIED_BYTES:
        raise InvalidOption(name, f"has {size} bytes", f"at most {MAX_CARRIED_BYTES} travel with a job")


def _removal_wire(value: Removal) -> bool | int | JsonObject:
    return value.to_wire() if isinstance(value, KeepJobs) else value


def _same(value: JsonValue) -> JsonValue:
    return value


def _part(value: Deduplication | ParentRef | None) -> JsonObject | None:
    return None if value is None else value.to_wire()


def _group_wire(group: JsonValue) -> JsonValue:
    return {"id": group}


def _timestamp(value: datetime) -> int:
    return datetime_to_ms("timestamp", value)


Check: TypeAlias = Callable[[str, JsonValue], JsonValue]
Spell: TypeAlias = Callable[[JsonValue], JsonValue]

# Our name → (the check, BullMQ's name, how the value is written there). BullMQ's spellings live here only.
_TABLE: dict[str, tuple[Check, str, Spell]] = {
    "attempts": (_count(1), "attempts", _same),
    "backoff": (_backoff, "backoff", _part),
    "priority": (_count(0, MAX_PRIORITY), "priority", _same),
    "delay": (to_seconds, "delay", to_ms),
    "lifo": (check_boolean, "lifo", _same),
    "job_id": (lambda name, value: check_job_id(value, field_name=name), "jobId", _same),
    "remove_on_complete": (_removal, "removeOnComplete", _removal_wire),
    "remove_on_fail": (_removal, "removeOnFail", _removal_wire),
    "keep_logs": (_count(0), "kl", _same),
    "size_limit": (_count(1), "sizeLimit", _same),
    "stack_trace_limit": (_count(0), "stackTraceLimit", _same),
    "deduplication": (_of(Deduplication, 'Deduplication("id")'), "de", _part),
    "parent": (_of(ParentRef, 'ParentRef("id", "bull:queue")'), "parent", _part),
    "fail_parent_on_failure": (check_boolean, "fpof", _same),
    "continue_parent_on_failure": (check_boolean, "cpof", _same),
    "ignore_dependency_on_failure": (check_boolean, "idof", _same),
    "remove_dependency_on_failure": (check_boolean, "rdof", _same),
    "timestamp": (_time, "timestamp", _timestamp),
    "telemetry_metadata": (_metadata, "tm", _same),
    "omit_context": (check_boolean, "omc", _same),
    "repeat": (_repeat, "repeat", _same),
    "expires": (_expiry, "expires", to_ms),
    "group": (check_text, "group", _group_wire),
}
ON_FAILURE = (
    "fail_parent_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
    "remove_dependency_on_failure",
)


# --- the options --------------------------------------------------------------------------------------------


@knows_its_options("a job option")
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class JobOptions:
    """The options of a job. Fields that are left out follow the defaults of the queue."""

    priority: int = default(0)  # 1 is first, 2,097,152 last; 0 (none) runs before all of them
    delay: Seconds = seconds(0.0)  # not before this time has passed; a debounced job: its ttl, unless given
    attempts: int = default(3)  # how often the job is tried, the first time included
    backoff: Backoff | Duration | None = default(Backoff("exponential", 1.0))  # the pause between attempts
    lifo: bool = default(False)  # to the front of the queue
    job_id: str | None = default(None)  # adding an id that exists already changes nothing
    remove_on_complete: Removal = default(False)
    remove_on_fail: Removal = default(False)
    keep_logs: int | None = default(None)  # log lines that stay, 0: none; None: the library's 1000
    size_limit: int | None = default(None)  # bytes of data
    stack_trace_limit: int | None = default(None)  # stack traces that stay, the newest
    deduplication: Deduplication | None = default(None)
    parent: ParentRef | None = default(None)
    fail_parent_on_failure: bool = default(False)  # the parent fails with this job
    continue_parent_on_failure: bool = default(False)  # the parent runs as soon as this job has failed
    ignore_dependency_on_failure: bool = default(False)  # the parent no longer waits, and can read the reason
    remove_dependency_on_failure: bool = default(False)  # the parent no longer waits for it
    timestamp: datetime | None = default(None)  # when the job was created; None: now
    telemetry_metadata: str | None = default(None)  # trace context, a JSON string
    omit_context: bool = default(False)  # do not pass the trace context on
    repeat: JsonFields | None = default(None)  # of repeatable jobs, carried as it is
    expires: OptionalSeconds = no_seconds()  # not run later than this after it was added: it fails then
    group: str | None = default(None)  # groups of one queue are served in turns

    given: tuple[str, ...] = field(init=False)  # the fields that were set, in the order above
    _packed: bytes | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        given = take_defaults(self, _TABLE)
        for name in given:
            value = getattr(self, name)
            kept = _TABLE[name][0](name, value)
            if kept is not value:
                object.__setattr__(self, name, kept)
        object.__setattr__(self, "given", tuple(given))
        object.__setattr__(self, "_packed", None)
        if self.deduplication is not None and "delay" not in given and self.deduplication.implied_delay:
            object.__setattr__(self, "delay", self.deduplication.implied_delay)
        self._check_together()

    def _check_together(self) -> None:
        chosen = [name for name in ON_FAILURE if getattr(self, name)]
        if len(chosen) > 1:
            raise InvalidOption(chosen[1], f"cannot be combined with {chosen[0]}", "choose one of them")
        if self.group is not None and (self.priority or self.lifo):
            name = "priority" if self.priority else "lifo"
            remedy = "leave one of them out: groups are served in turns, and the jobs of a group in order"
            raise InvalidOption(name, "cannot be combined with group", remedy)
        if self.repeat is not None and self.delay and not self.repeat.get("count"):
            raise InvalidOption("delay", "cannot be combined with repeat", "leave one of them out")

    def __repr__(self) -> str:
        return f"JobOptions({', '.join(f'{name}={getattr(self, name)!r}' for name in self.given)})"

    @classmethod
    def of(cls, fields: JsonFields) -> JobOptions:
        """Options from a mapping; a name that is no option is refused with the nearest one."""
        refuse_unknown(fields, _TABLE, "a job option")
        made = cls.__new__(cls)
        _fill(made, **fields)  # the names are known by now: every `add` with options passes here
        return made

    def given_fields(self) -> JsonObject:
        """The fields that were set, by name."""
        return {name: getattr(self, name) for name in self.given}

    def to_wire(self) -> JsonObject:
        """The options as Node packs them: short names, milliseconds, only what was set."""
        wire: JsonObject = {"attempts": self.attempts}
        if isinstance(self.backoff, Backoff):
            wire["backoff"] = self.backoff.to_wire()
        for name in self.given:
            if name not in ("attempts", "backoff"):
                _, spelling, spell = _TABLE[name]
                wire[spelling] = spell(getattr(self, name))
        if self.delay and "delay" not in wire:  # implied
            wire["delay"] = to_ms(self.delay)
        return wire

    @property
    def packed(self) -> bytes:
        """`to_wire` as msgpack, made once."""
        packed = self._packed
        if packed is None:
            packed = pack(self.to_wire())
            object.__setattr__(self, "_packed", packed)
        return packed

    def parent_wire(self) -> JsonObject | None:
        """The `parent` of the job's hash: the reference and what a failure does to it."""
        if self.parent is None:
            return None
        flags = {_TABLE[name][1]: True for name in ON_FAILURE if getattr(self, name)}
        return {"id": self.parent.id, "queueKey": self.parent.queue_key, **flags}

    @classmethod
    def from_wire(cls, wire: JsonFields) -> JobOptions:
        """The options of a stored job of any client, as far as toril has them: others are left out."""
        fields: JsonObject = {"attempts": max(1, _whole(wire.get("attempts"))), "backoff": None}
        for name, (check, spelling, _) in _TABLE.items():
            if name in fields and name != "backoff":
                continue
            try:
                value = _READ.get(name, _same)(wire.get(spelling))
                if value is not None:
                    fields[name] = check(name, value)
            except (TorilError, ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError):
                continue
        if "group" in fields:
            fields.pop("priority", None)  # made when the job was added
            fields.pop("lifo", None)
        return cls(**fields)


_fill = inspect.unwrap(JobOptions.__init__)


def _whole(value: object) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def _read_removal(value: JsonValue) -> KeepJobs | JsonValue:
    return (
        KeepJobs(**{name: value.get(name) for name in ("age", "count", "limit")})
        if isinstance(value, dict)
        else value
    )


_READ: dict[str, Spell] = {
    "backoff": Backoff.from_wire,
    "delay": lambda value: None if value is None else value / 1000,
    "expires": lambda value: None if value is None else value / 1000,
    "remove_on_complete": _read_removal,
    "remove_on_fail": _read_removal,
    "deduplication": lambda value: Deduplication.from_wire(value) if value else None,
    "parent": lambda value: ParentRef(value["id"], value["queue"]) if value else None,
    "timestamp": lambda value: ms_to_datetime(value) if value else None,
    "group": lambda value: str(value["id"]) if value else None,
}


def merge(defaults: JobOptions, overrides: JobOptions | JsonFields | None) -> JobOptions:
    """`defaults` with every field that `overrides` sets, even if it sets it to what it would be anyway."""
    if not overrides:
        return defaults
    if isinstance(overrides, JobOptions):
        if not defaults.given or not overrides.given:
            return overrides if overrides.given else defaults
        overrides = overrides.given_fields()
    elif not defaults.given:
        return JobOptions.of(overrides)
    return JobOptions.of({**defaults.given_fields(), **overrides})


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job that has not been added yet."""

    name: str
    data: JsonValue = field(default_factory=dict)
    options: JobOptions | None = None  # None: the defaults of the queue

    def __post_init__(self) -> None:
        check_text("name", self.name)


class JobOptionsDict(TypedDict, total=False):
    """The fields of `JobOptions` as keyword arguments: `queue.add(name, data, **options)`."""

    priority: int
    delay: Duration
    attempts: int
    backoff: Backoff | Duration | None
    lifo: bool
    job_id: str | None
    remove_on_complete: Removal
    remove_on_fail: Removal
    keep_logs: int | None
    size_limit: int | None
    stack_trace_limit: int | None
    deduplication: Deduplication | None
    parent: ParentRef | None
    fail_parent_on_failure: bool
    continue_parent_on_failure: bool
    ignore_dependency_on_failure: bool
    remove_dependency_on_failure: bool
    timestamp: datetime | None
    telemetry_metadata: str | None
    omit_context: bool
    repeat: JsonFields | None
    expires: Duration | None
    group: str | None
