"""The canonical message of list and stream queues, and dead letters.

Guarantee: byte-stable. Fields are written in one order, compactly, in UTF-8; fields that are not known here are
kept and written after the known ones; reading and writing a canonical text gives the same bytes.

    {"job_id", "task_type", "attempts", "max_attempts", "payload",
     "meta": {"correlation_id", "user_id", "enqueue_ts", "source"}}
    a dead letter adds "dlq_ts", "dlq_reason", "last_error"
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

import msgspec

from toril.errors import (
    InvalidOption,
    MalformedValue,
    MissingUser,
    NotSerializable,
    PayloadMismatch,
)
from toril.protocol.codec import from_json, to_json
from toril.protocol.json_types import JsonFields, JsonObject, JsonValue
from toril.protocol.keys import check_text

DlqReason: TypeAlias = Literal["max_attempts_exceeded", "validation_error", "missing_user", "permanent_error"]

DEFAULT_MAX_ATTEMPTS = 5
TRACE_FIELD = "tm"  # of `meta`: the trace context, under the name it has in BullMQ's options
_LONGEST_ERROR = 1000  # characters of `last_error`: enough to recognise it, too few to fill a stream


def utc_text(moment: datetime) -> str:
    """`2025-01-01T00:00:00Z`, with milliseconds where there are any."""
    if moment.utcoffset() is None:
        raise InvalidOption("enqueue_ts", "has no time zone", "use datetime.now(timezone.utc)")
    precision = "milliseconds" if moment.microsecond else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _time_of(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidOption(name, "is not an ISO 8601 time", 'write it like "2025-01-01T00:00:00Z"') from None
    if moment.utcoffset() is None:
        raise InvalidOption(name, "has no time zone", 'write it like "2025-01-01T00:00:00Z"')
    return moment


@dataclass(frozen=True, kw_only=True, slots=True)
class Meta:
    """The origin of a message."""

    correlation_id: str
    enqueue_ts: str  # text, so that it is written as it was read
    source: str
    user_id: str | None = None
    extra: JsonFields = field(default_factory=dict)  # fields that are not known here

    def __post_init__(self) -> None:
        check_text("meta.correlation_id", self.correlation_id)
        check_text("meta.source", self.source)
        if self.user_id is not None:
            check_text("meta.user_id", self.user_id)
        _time_of("meta.enqueue_ts", self.enqueue_ts)

    @property
    def enqueued_at(self) -> datetime:
        """When the message was first sent."""
        return _time_of("meta.enqueue_ts", self.enqueue_ts)

    def as_dict(self) -> JsonObject:
        """The fields in their order."""
        return {
            "correlation_id": self.correlation_id,
            "user_id": self.user_id,
            "enqueue_ts": self.enqueue_ts,
            "source": self.source,
            **self.extra,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """One message. `attempts` counts the attempts that ended; at `max_attempts` it becomes a dead letter."""

    job_id: str
    task_type: str
    payload: JsonFields
    meta: Meta
    attempts: int = 0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    extra: JsonFields = field(default_factory=dict)  # fields that are not known here

    def __post_init__(self) -> None:
        check_text("job_id", self.job_id)
        check_text("task_type", self.task_type)
        _whole_number("attempts", self.attempts, 0)
        _whole_number("max_attempts", self.max_attempts, 1)
        if not isinstance(self.payload, Mapping):
            raise InvalidOption("payload", f"is a {type(self.payload).__name__}", "give a mapping")

    @classmethod
    def new(
        cls,
        task_type: str,
        payload: JsonFields | None = None,
        *,
        job_id: str | None = None,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        correlation_id: str | None = None,
        user_id: str | None = None,
        source: str = "toril",
        now: datetime | None = None,
    ) -> Envelope:
        """A message that has not been sent yet."""
        meta = Meta(
            correlation_id=correlation_id or str(uuid.uuid4()),
            user_id=user_id,
            enqueue_ts=utc_text(now or datetime.now(UTC)),
            source=source,
        )
        return cls(
            job_id=job_id or str(uuid.uuid4()),
            task_type=task_type,
            payload={} if payload is None else payload,
            max_attempts=max_attempts,
            meta=meta,
        )

    @classmethod
    def from_bytes(cls, raw: bytes | str) -> Envelope:
        """Reads a message; one that is not an envelope raises `MalformedValue`."""
        return cls.from_dict(_object(raw))

    @classmethod
    def from_dict(cls, fields: JsonFields) -> Envelope:
        """An envelope from its decoded JSON."""
        rest = dict(fields)
        try:
            return cls(
                job_id=_take(rest, "job_id"),
                task_type=_take(rest, "task_type"),
                attempts=_take(rest, "attempts"),
                max_attempts=_take(rest, "max_attempts"),
                payload=_take(rest, "payload"),
                meta=_meta_of(_take(rest, "meta")),
                extra=rest,
            )
        except InvalidOption as error:
            raise MalformedValue(f"envelope.{error.field}", error.problem) from None

    @classmethod
    def of_unreadable(cls, raw: bytes, *, entry_id: str) -> Envelope:
        """An envelope for bytes that are none, so that they can become a dead letter."""
        meta = Meta(
            correlation_id=f"unreadable-{entry_id}", enqueue_ts="1970-01-01T00:00:00Z", source="unknown"
        )
        payload = {"raw": raw.decode("utf-8", "replace")}
        if payload["raw"].encode() != raw:
            payload["raw_base64"] = base64.b64encode(raw).decode()  # what is no text must not be lost, either
        return cls(
            job_id=f"unreadable-{entry_id}",
            task_type="unreadable",
            payload=payload,
            max_attempts=1,
            meta=meta,
        )

    # The names that a job has: one handler can serve all kinds of queue.

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job_id

    @property
    def name(self) -> str:
        """The task type."""
        return self.task_type

    @property
    def data(self) -> JsonFields:
        """The payload."""
        return self.payload

    @property
    def is_exhausted(self) -> bool:
        """Whether no attempt is left."""
        return self.attempts >= self.max_attempts

    def after_attempt(self) -> Envelope:
        """The same message, one attempt later."""
        return dataclasses.replace(self, attempts=self.attempts + 1)

    def fresh(self) -> Envelope:
        """The same message with all its attempts, for a replay."""
        return dataclasses.replace(self, attempts=0)

    def as_dict(self) -> JsonObject:
        """The fields in their order."""
        return {
            "job_id": self.job_id,
            "task_type": self.task_type,
            "attempts": self.attempts,
            "max_attempts": self.max_attempts,
            "payload": self.payload,
            "meta": self.meta.as_dict(),
            **self.extra,
        }

    def to_bytes(self) -> bytes:
        """The canonical text."""
        if self.extra or self.meta.extra:
            return to_json(self.as_dict(), field="")
        # Only the payload can hold what has no JSON form: the rest, checked when it was made, is simply written.
        return _encode({**self.as_dict(), "payload": msgspec.Raw(to_json(self.payload, field="payload"))})

    def rewritten(self) -> bytes:
        """The text of a message that was read: also of one with halves of characters, which others may write."""
        try:
            return self.to_bytes()
        except NotSerializable:
            return _escaped(self.as_dict())

    def rewritten_with(self, *, attempts: int, note: Mapping[str, Mapping[str, int]]) -> bytes:
        """The same with other attempts and a note in `meta`; what was checked when it was read is not checked again."""
        fields = {**self.as_dict(), "attempts": attempts, "meta": {**self.meta.as_dict(), **note}}
        try:
            if self.extra or self.meta.extra.keys() - note.keys():
                return to_json(fields, field="payload")
            return _encode({**fields, "payload": msgspec.Raw(to_json(self.payload, field="payload"))})
        except NotSerializable:
            return _escaped(fields)


_encode = msgspec.json.Encoder().encode


def _escaped(fields: JsonObject) -> bytes:
    """JSON in ASCII, as Node writes what has no form in UTF-8. What no JSON can hold still raises `NotSerializable`."""
    try:
        return json.dumps(fields, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise NotSerializable("payload", str(error), "convert it to JSON types first") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """A message that failed for good, with time and reason."""

    envelope: Envelope
    dlq_ts: str
    dlq_reason: DlqReason
    last_error: str
    entry_id: str | None = None  # its position, if it was read from a queue; not written

    def __post_init__(self) -> None:
        if self.dlq_reason not in get_args(DlqReason):
            choices = ", ".join(get_args(DlqReason))
            raise InvalidOption("dlq_reason", f"is {self.dlq_reason!r}", f"choose one of {choices}")
        _time_of("dlq_ts", self.dlq_ts)

    @classmethod
    def from_envelope(
        cls, envelope: Envelope, reason: DlqReason, error: BaseException | str, *, now: datetime | None = None
    ) -> DeadLetter:
        """The dead letter of `envelope`, as of now."""
        text = error if isinstance(error, str) else error_text(error)
        return cls(
            envelope=envelope, dlq_ts=utc_text(now or datetime.now(UTC)), dlq_reason=reason, last_error=text
        )

    @classmethod
    def from_bytes(cls, raw: bytes | str, *, entry_id: str | None = None) -> DeadLetter:
        """Reads a dead letter; anything else raises `MalformedValue`."""
        rest = _object(raw)
        try:
            when, reason, error = (_take(rest, name) for name in ("dlq_ts", "dlq_reason", "last_error"))
            envelope = Envelope.from_dict(rest)
            return cls(
                envelope=envelope, dlq_ts=when, dlq_reason=reason, last_error=str(error), entry_id=entry_id
            )
        except InvalidOption as error:
            raise MalformedValue(f"dead_letter.{error.field}", error.problem) from None

    @property
    def job_id(self) -> str:
        """The id of its job."""
        return self.envelope.job_id

    @property
    def task_type(self) -> str:
        """The task type of its job."""
        return self.envelope.task_type

    @property
    def died_at(self) -> datetime:
        """When it was given up."""
        return _time_of("dlq_ts", self.dlq_ts)

    def as_dict(self) -> JsonObject:
        """The fields in their order: the envelope's first."""
        added = {"dlq_ts": self.dlq_ts, "dlq_reason": self.dlq_reason, "last_error": self.last_error}
        return {**self.envelope.as_dict(), **added}

    def to_bytes(self) -> bytes:
        """The canonical text; unknown fields are kept."""
        try:
            return to_json(self.as_dict(), field="payload")
        except NotSerializable:
            return _escaped(self.as_dict())


def dlq_reason(error: BaseException, *, exhausted: bool) -> DlqReason:
    """Why a message is given up after `error`."""
    if exhausted:
        return "max_attempts_exceeded"
    link: BaseException | None = error
    for _ in range(10):
        if link is None:
            break
        if isinstance(link, MissingUser):
            return "missing_user"
        if isinstance(link, (InvalidOption, MalformedValue, PayloadMismatch)) or _is_validation_error(link):
            return "validation_error"
        link = link.__cause__
    return "permanent_error"


def _is_validation_error(error: BaseException) -> bool:
    return any(cls.__name__ == "ValidationError" for cls in type(error).__mro__)


def error_text(error: BaseException) -> str:
    """The text of `last_error`: the error's own `error_code` (such as `playwright_timeout`), or type and message."""
    text = type(error).__name__
    with contextlib.suppress(Exception):  # the text of an error may raise
        text = _code_or_message(error)
    return text[:_LONGEST_ERROR].encode("utf-8", "replace").decode()


def _code_or_message(error: BaseException) -> str:
    code = getattr(error, "error_code", None)
    if isinstance(code, str) and code:
        return code
    message = str(error)[:_LONGEST_ERROR]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# --- reading ------------------------------------------------------------------------------------------------


def _object(raw: bytes | str) -> JsonObject:
    value = from_json(raw, field="envelope")
    if not isinstance(value, dict):
        raise MalformedValue("envelope", "is not an object")
    return value


def _take(fields: JsonObject, name: str) -> JsonValue:
    try:
        return fields.pop(name)
    except KeyError:
        raise InvalidOption(name, "is missing", "write all fields of an envelope") from None


def _meta_of(fields: object) -> Meta:
    if not isinstance(fields, Mapping):
        raise InvalidOption("meta", "is not an object", "write a JSON object")
    rest = dict(fields)
    try:
        return Meta(
            correlation_id=_take(rest, "correlation_id"),
            user_id=rest.pop("user_id", None),
            enqueue_ts=_take(rest, "enqueue_ts"),
            source=_take(rest, "source"),
            extra=rest,
        )
    except InvalidOption as error:
        name = error.field if error.field.startswith("meta.") else f"meta.{error.field}"
        raise InvalidOption(name, error.problem, error.remedy) from None


def _whole_number(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(name, f"is not an integer of at least {least}", "write one")
