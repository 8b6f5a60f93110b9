"""The events of a queue.

Guarantee: every entry becomes an `Event`, also one of a kind that is not known here, with all its fields; the
time is the server's, taken from the entry's id. Nothing is decoded until it is read.

BullMQ writes no event for a retry: it writes `delayed`, or `waiting` with prev=active. `RetryDeriver` adds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from toril.errors import MalformedValue
from toril.protocol.codec import from_json
from toril.protocol.codecs import PayloadField, QueueCodecs
from toril.protocol.duration import ms_to_datetime
from toril.protocol.json_types import JsonObject, JsonValue

# Every event that BullMQ 5.62.0 writes → the fields it carries.
KNOWN_EVENTS: dict[str, tuple[str, ...]] = {
    "added": ("jobId", "name"),
    "waiting": ("jobId", "prev"),
    "active": ("jobId", "prev"),
    "progress": ("jobId", "data"),
    "completed": ("jobId", "returnvalue", "prev"),
    "failed": ("jobId", "failedReason", "prev"),
    "delayed": ("jobId", "delay"),
    "stalled": ("jobId",),
    "retries-exhausted": ("jobId", "attemptsMade"),
    "waiting-children": ("jobId", "prev"),
    "removed": ("jobId", "prev"),
    "duplicated": ("jobId",),
    "deduplicated": ("jobId", "deduplicationId", "deduplicatedJobId"),
    "debounced": ("jobId", "debounceId"),
    "drained": (),
    "paused": (),
    "resumed": (),
    "cleaned": ("count",),
}


def entry_time_ms(entry_id: str) -> int:
    """The milliseconds in the id of a stream entry (`1700000000000-0`)."""
    try:
        return int(entry_id.partition("-")[0])
    except ValueError:
        raise MalformedValue("id", f"{entry_id!r} is not the id of a stream entry") from None


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `fields` is the entry without `event` and `jobId`; attributes that do not apply are None."""

    id: str
    type: str
    job_id: str | None
    fields: Mapping[str, str]
    derived: bool = False  # derived by toril, not in the stream
    codecs: QueueCodecs | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_entry(
        cls,
        entry_id: bytes | str,
        entry: Mapping[Any, Any] | Sequence[Any],
        codecs: QueueCodecs | None = None,
    ) -> Event:
        """From a stream entry: a mapping or a flat list, of bytes or strings."""
        pairs = entry.items() if isinstance(entry, Mapping) else zip(entry[::2], entry[1::2], strict=True)
        fields = {_as_text(name): _as_text(value) for name, value in pairs}
        kind = fields.pop("event", "")
        return cls(_as_text(entry_id), kind, fields.pop("jobId", None), fields, codecs=codecs)

    @property
    def is_known(self) -> bool:
        """Whether BullMQ 5.62.0, or toril, writes events of this type."""
        return self.type in KNOWN_EVENTS or self.derived

    @property
    def time(self) -> datetime:
        """When it happened, by the server's clock."""
        try:
            return ms_to_datetime(entry_time_ms(self.id))
        except (ValueError, OverflowError, OSError):
            raise MalformedValue("id", f"{self.id!r} has no time") from None

    @property
    def prev(self) -> str | None:
        """The state before."""
        return self.fields.get("prev")

    @property
    def name(self) -> str | None:
        """The job's name, for `added`."""
        return self.fields.get("name")

    @property
    def progress(self) -> JsonValue:
        """What the handler reported, for `progress`."""
        return self._json("data", "progress")

    @property
    def returnvalue(self) -> JsonValue:
        """What the handler returned, for `completed`."""
        return self._json("returnvalue", "result")

    @property
    def failed_reason(self) -> str | None:
        """Why the job failed for good, for `failed`."""
        return self.fields.get("failedReason")

    @property
    def delayed_until(self) -> datetime | None:
        """When the job is due, for `delayed` and `retry`."""
        value = self._integer("delay")
        return None if value is None else ms_to_datetime(value)

    @property
    def attempts_made(self) -> int | None:
        """Only `retries-exhausted` has it; the pipeline fills it in for the others."""
        return self._integer("attemptsMade")

    @property
    def deduplication_id(self) -> str | None:
        """The shared id, for `deduplicated` and `debounced`."""
        return self.fields.get("deduplicationId") or self.fields.get("debounceId")

    @property
    def deduplicated_job_id(self) -> str | None:
        """The job that was dropped or replaced, for `deduplicated`."""
        return self.fields.get("deduplicatedJobId")

    @property
    def count(self) -> int | None:
        """How many jobs were removed, for `cleaned`."""
        return self._integer("count")

    def as_dict(self) -> JsonObject:
        """JSON types, as in `schemas/event.json`."""
        return {
            "id": self.id,
            "event": self.type,
            "jobId": self.job_id,
            "timestamp": entry_time_ms(self.id),
            "attemptsMade": self._known_attempts(),
            "data": dict(self.fields),
            "derived": self.derived,
        }

    def _known_attempts(self) -> int | None:
        try:
            return self.attempts_made
        except MalformedValue:
            return None  # the field itself is in the data

    def _json(self, field: str, where: PayloadField) -> JsonValue:
        raw = self.fields.get(field)
        if raw is None or self.codecs is None:
            return None if raw is None else from_json(raw, field=field)
        return from_json(self.codecs.decode_any(raw.encode(), where), field=field)

    def _integer(self, field: str) -> int | None:
        raw = self.fields.get(field)
        if raw is None:
            return None
        try:
            return int(float(raw))
        except (ValueError, OverflowError):
            raise MalformedValue(field, "is not a number", job_id=self.job_id) from None


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class RetryDeriver:
    """Adds a `retry` event after each event that means one.

    A job that was active and becomes `delayed` is retried later; one that returns to `waiting` is retried at
    once, unless the next event is that it had stalled.
    """

    __slots__ = ("_active", "_held", "_limit")

    def __init__(self, *, limit: int = 100_000) -> None:
        self._active: dict[str, None] = {}  # jobs seen to start, oldest first
        self._limit = limit  # a bound on memory: jobs forgotten beyond it get no derived event
        self._held: Event | None = None  # a return to waiting, whose reason the next event decides

    @property
    def holds(self) -> bool:
        """Whether an event is held back until the next one, or `flush`, decides its meaning."""
        return self._held is not None

    def feed(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events, in order, with the derived ones between them."""
        for event in events:
            held, self._held = self._held, None
            if held is not None and not (event.type == "stalled" and event.job_id == held.job_id):
                yield _retry(held)
            yield event
            if self._means_retry(event):
                yield _retry(event)

    def flush(self) -> Iterator[Event]:
        """Returns the event that is still held back, when no further one will come."""
        held, self._held = self._held, None
        if held is not None:
            yield _retry(held)

    def _means_retry(self, event: Event) -> bool:
        job_id = event.job_id
        if job_id is None:
            return False
        if event.type == "active":
            self._remember(job_id)
            return False
        if event.type == "waiting" and event.prev == "active":
            self._active.pop(job_id, None)
            self._held = event
            return False
        if event.type == "delayed":
            return self._active.pop(job_id, _ABSENT) is not _ABSENT
        if event.type in ("completed", "failed", "removed", "waiting-children"):
            self._active.pop(job_id, None)
        return False

    def _remember(self, job_id: str) -> None:
        self._active[job_id] = None
        if len(self._active) > self._limit:
            del self._active[next(iter(self._active))]


_ABSENT: JsonValue = object()


def _retry(event: Event) -> Event:
    fields = {**event.fields, "prev": "active"}
    return Event(event.id, "retry", event.job_id, fields, derived=True, codecs=event.codecs)
