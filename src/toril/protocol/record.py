"""A stored job, as it is in its hash.

Guarantee: making a record decodes nothing, so a worker pays only for what it reads; a malformed field raises
`MalformedValue`, a permanent error, when that field is read and not before, so one broken job never stops a
listing or a sweep. As in Node, missing fields have their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from toril.errors import MalformedValue
from toril.protocol.codec import from_json
from toril.protocol.duration import ms_to_datetime
from toril.protocol.json_types import JsonObject, JsonValue
from toril.protocol.options import JobOptions, ParentRef


class JobRecord:
    """The hash of one job. Times are aware datetimes and durations seconds; `*_ms` are the stored numbers."""

    __slots__ = ("_data", "_opts", "fields", "id")

    id: str
    fields: Mapping[bytes, bytes]
    """The hash as it was read."""
    _data: JsonValue
    _opts: JsonObject

    def __init__(self, job_id: str, fields: Mapping[bytes, bytes]) -> None:
        self.id = job_id
        self.fields = fields

    @classmethod
    def from_flat(cls, job_id: str, flat: Sequence[bytes]) -> JobRecord:
        """From a flat `field, value, …` list, as scripts and RESP2 return hashes."""
        words = iter(flat)
        return cls(job_id, dict(zip(words, words, strict=True)))

    @classmethod
    def from_mapping(
        cls, job_id: str, fields: Mapping[str, str | bytes] | Mapping[bytes, str | bytes]
    ) -> JobRecord:
        """From a mapping of bytes or strings."""
        return cls(job_id, {_as_bytes(name): _as_bytes(value) for name, value in fields.items()})

    def with_fields(self, changes: Mapping[str, bytes | None]) -> JobRecord:
        """Returns a copy with these fields; None removes a field."""
        fields = dict(self.fields)
        for name, value in changes.items():
            if value is None:
                fields.pop(name.encode(), None)
            else:
                fields[name.encode()] = value
        return JobRecord(self.id, fields)

    def __repr__(self) -> str:
        return f"JobRecord(id={self.id!r}, name={self.name!r})"

    def __bool__(self) -> bool:
        """Whether the job exists: Redis replies with an empty hash when it does not."""
        return bool(self.fields)

    # --- the raw fields ---

    @property
    def raw_data(self) -> bytes:
        """The payload as JSON text."""
        return self.fields.get(b"data") or b"{}"

    def text(self, field: str) -> str | None:
        """A field as text; bytes that are no UTF-8 are replaced."""
        raw = self.fields.get(field.encode())
        return None if raw is None else raw.decode("utf-8", "replace")

    def _number(self, field: bytes, default: int = 0) -> int:
        raw = self.fields.get(field)
        if not raw:
            return default
        try:
            return int(raw)
        except ValueError:
            return self._rounded(field, raw)

    def _rounded(self, field: bytes, raw: bytes) -> int:
        try:
            return int(float(raw))  # Lua may write 1.7e+12
        except (ValueError, OverflowError):
            raise MalformedValue(field.decode(), "is not a number", job_id=self.id) from None

    def _json(self, field: bytes, default: JsonValue) -> JsonValue:
        raw = self.fields.get(field)
        if not raw:
            return default
        try:
            return from_json(raw)
        except MalformedValue as error:
            raise MalformedValue(field.decode(), error.problem, job_id=self.id) from None

    def _time(self, field: bytes) -> datetime | None:
        milliseconds = self._number(field)
        return self._moment(field, milliseconds) if milliseconds else None

    def _moment(self, field: bytes, milliseconds: int) -> datetime:
        try:
            return ms_to_datetime(milliseconds)
        except (ValueError, OverflowError, OSError):
            raise MalformedValue(field.decode(), "is not a time", job_id=self.id) from None

    # --- what the job is ---

    @property
    def name(self) -> str:
        """The name that was given to `add`."""
        return self.fields.get(b"name", b"").decode("utf-8", "replace")

    @property
    def data(self) -> JsonValue:
        """The payload."""
        try:
            return self._data
        except AttributeError:
            self._data = value = self._json(b"data", {})
            return value

    @property
    def opts(self) -> JsonObject:
        """The options as stored, with BullMQ's spellings."""
        try:
            return self._opts
        except AttributeError:
            value = self._json(b"opts", {})
            if not isinstance(value, dict):
                raise MalformedValue("opts", "is not an object", job_id=self.id) from None
            self._opts = value
            return value

    @property
    def options(self) -> JobOptions:
        """The options as `JobOptions`, as far as toril has them."""
        return JobOptions.from_wire(self.opts)

    @property
    def max_attempts(self) -> int:
        """How often the job may be tried; Node's jobs without `attempts` run once."""
        attempts = self.opts.get("attempts")
        return max(1, int(attempts)) if isinstance(attempts, (int, float)) else 1

    @property
    def group(self) -> str | None:
        """The group of the job; None if it has none."""
        group = self.opts.get("group")
        name = group.get("id") if isinstance(group, dict) else None
        return None if name is None else str(name)

    @property
    def priority(self) -> int:
        """1 is first; 0 is none."""
        return self._number(b"priority")

    @property
    def delay_ms(self) -> int:
        """The stored delay."""
        return self._number(b"delay")

    @property
    def delay(self) -> float:
        """Seconds by which the job is, or was last, delayed."""
        return self.delay_ms / 1000

    # --- when ---

    @property
    def timestamp_ms(self) -> int:
        """When the job was added, in Unix milliseconds."""
        return self._number(b"timestamp")

    @property
    def timestamp(self) -> datetime:
        """When the job was added."""
        return self._moment(b"timestamp", self.timestamp_ms)

    @property
    def processed_on(self) -> datetime | None:
        """When a worker last took it."""
        return self._time(b"processedOn")

    @property
    def finished_on(self) -> datetime | None:
        """When it completed or failed."""
        return self._time(b"finishedOn")

    # --- how it went ---

    @property
    def attempts_made(self) -> int:
        """Attempts that ended. The legacy field `attemptsMade` wins if it is there, as in Node."""
        return self._number(b"attemptsMade" if self.fields.get(b"attemptsMade") else b"atm")

    @property
    def attempts_started(self) -> int:
        """Attempts that began."""
        return self._number(b"ats")

    @property
    def stalled_count(self) -> int:
        """How often it was found stalled."""
        return self._number(b"stc")

    @property
    def progress(self) -> JsonValue:
        """A number from 0 to 100, or whatever the handler reported."""
        return self._json(b"progress", 0)

    @property
    def returnvalue(self) -> JsonValue:
        """What the handler returned; `None` until the job has completed."""
        return self._json(b"returnvalue", None)

    @property
    def result_of(self) -> str | None:
        """The key of the job whose result is its data."""
        key = self.opts.get("resultOf")
        return key if isinstance(key, str) else None

    @property
    def failed_reason(self) -> str | None:
        """Why the last attempt failed."""
        return self.text("failedReason")

    @property
    def stacktrace(self) -> list[str]:
        """The stack traces, oldest first. Text that is no list is given as it is: it is there to be read."""
        try:
            traces = self._json(b"stacktrace", [])
        except MalformedValue:
            traces = [self.text("stacktrace")]
        return [str(trace) for trace in traces] if isinstance(traces, list) else [str(traces)]

    @property
    def processed_by(self) -> str | None:
        """The worker that took it last."""
        return self.text("pb")

    @property
    def deferred_failure(self) -> str | None:
        """Set when the next pickup must fail the job: it stalled too often, or a child failed."""
        return self.text("defa")

    # --- what it belongs to ---

    @property
    def parent(self) -> ParentRef | None:
        """The job that waits for this one."""
        value = self._json(b"parent", None)
        if not value:
            return None
        try:
            return ParentRef(value["id"], value["queueKey"])
        except (TypeError, KeyError, ValueError):
            raise MalformedValue("parent", "is not a reference to a job", job_id=self.id) from None

    @property
    def parent_key(self) -> str | None:
        """The hash of the parent."""
        return self.text("parentKey")

    @property
    def repeat_job_key(self) -> str | None:
        """The scheduler that made the job."""
        return self.text("rjk")

    @property
    def next_repeat_job_id(self) -> str | None:
        """The next run of its scheduler, if it exists already."""
        return self.text("nrjid")

    @property
    def deduplication_id(self) -> str | None:
        """The id under which duplicates are dropped."""
        return self.text("deid")

    # --- for listings ---

    def as_dict(self) -> JsonObject:
        """JSON types under Node's names, as in `schemas/job.json`. Fields that do not parse are named, not raised."""
        malformed: list[str] = [] if self.fields else ["hash"]  # the key of the job is no hash
        shown: JsonObject = {"id": self.id}
        for spelling, attribute in _SHOWN.items():
            try:
                value = getattr(self, attribute)
            except MalformedValue:
                malformed.append(spelling)
                continue
            if value is not None:
                shown[spelling] = value
        if malformed:
            shown["malformed"] = malformed
        return shown

    @property
    def processed_on_ms(self) -> int | None:
        """When a worker last took it, in Unix milliseconds."""
        return self._number(b"processedOn") or None

    @property
    def finished_on_ms(self) -> int | None:
        """When it completed or failed, in Unix milliseconds."""
        return self._number(b"finishedOn") or None


# Node's name → the attribute, for `as_dict`.
_SHOWN = {
    "name": "name",
    "data": "data",
    "opts": "opts",
    "progress": "progress",
    "priority": "priority",
    "delay": "delay_ms",
    "timestamp": "timestamp_ms",
    "attemptsMade": "attempts_made",
    "attemptsStarted": "attempts_started",
    "stalledCounter": "stalled_count",
    "processedOn": "processed_on_ms",
    "finishedOn": "finished_on_ms",
    "returnvalue": "returnvalue",
    "failedReason": "failed_reason",
    "stacktrace": "stacktrace",
    "processedBy": "processed_by",
    "parentKey": "parent_key",
    "repeatJobKey": "repeat_job_key",
    "deduplicationId": "deduplication_id",
}


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
