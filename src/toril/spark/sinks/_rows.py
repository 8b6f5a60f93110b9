"""Rows of a DataFrame as jobs.

Guarantee: a row becomes the same job with the same digest every time, whatever order Spark delivers rows in; a row that
is no job becomes a reject with the reason.

    name, data            what to do; data is a struct, a map, a variant, or JSON text
    queue                 where, unless the write names one queue
    any of OPTION_COLUMNS, such as job_id, delay (seconds), priority, attempts, backoff (seconds or a struct), lifo
    other columns         together they are the data, when there is no column `data`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from toril.commands.add import JobToAdd
from toril.commands.bulk_enqueue import Reject, Row
from toril.commands.envelopes import EnvelopeToAdd
from toril.errors import InvalidOption, TorilError
from toril.protocol.codec import MAX_PAYLOAD_BYTES, to_json
from toril.protocol.duration import to_seconds
from toril.protocol.envelope import Envelope
from toril.protocol.keys import check_text
from toril.protocol.options import JobOptions
from toril.spark.sinks.column_types import (
    option_value,
    plain_number,
    plain_value,
    text_of_large,
    variant_columns,
    with_variants,
)
from toril.spark.sinks.identity import CONTENT_COLUMN, Identifier, Identity, canonical
from toril.spark.sinks.options import SinkOptions

# fmt: off
OPTION_COLUMNS: Final = frozenset({
    "priority", "delay", "attempts", "backoff", "lifo", "job_id", "remove_on_complete", "remove_on_fail", "keep_logs",
    "size_limit", "stack_trace_limit", "timestamp", "telemetry_metadata", "omit_context", "deduplication",
    "group",
})
# fmt: on
ENVELOPE_COLUMNS: Final = frozenset(
    ["job_id", "delay", "max_attempts", "correlation_id", "user_id", "source"]
)


# The queue under whose name rows are set aside that name no queue, or an impossible one.
WITHOUT_QUEUE: Final = "toril.rejects"


@dataclass(frozen=True, slots=True)
class AddressedRow:
    """A row and the queue it goes to."""

    queue: str
    row: Row


@dataclass(slots=True)
class RowReader:
    """Reads the rows of one task."""

    options: SinkOptions
    run: str
    partition: int
    now_ms: int
    _columns: tuple[str, ...] | None = None  # those that are options; all rows of a task have the same
    _known_options: dict[tuple[Any, ...], tuple[JobOptions, dict[str, Any]]] = field(default_factory=dict)
    _known_queues: set[str] = field(default_factory=set)  # checked already
    _identifier: Identifier = field(init=False)

    def __post_init__(self) -> None:
        self._identifier = Identifier(self.options, self.run, self.partition)

    def read(self, batch: pa.RecordBatch) -> Iterator[AddressedRow]:
        """The rows of a batch, jobs and rejects, in order."""
        variants = variant_columns(batch.schema)
        for fields in batch.to_pylist(maps_as_pydicts="lossy"):
            yield self._with_queue(with_variants(fields, variants) if variants else fields)

    def _with_queue(self, fields: dict[str, Any]) -> AddressedRow:
        content_hash = fields.pop(CONTENT_COLUMN, None)
        content = canonical(fields)
        try:
            known = self._identifier.of(fields, content, content_hash)
        except InvalidOption as error:
            return self._rejected(fields, self._identifier.reject_without_key(content), content, error)
        try:
            queue = self._queue(fields)
            return AddressedRow(queue, Row(known.digest, self._job(fields, known.job_id), known.first))
        except (TorilError, ValueError, TypeError) as error:
            return self._rejected(fields, known, content, error)

    def _rejected(
        self, fields: Mapping[str, Any], known: Identity, content: bytes, error: Exception
    ) -> AddressedRow:
        if self.options.on_reject == "fail":
            raise InvalidOption(
                "row", str(error), f"fix or filter it: {content[:300].decode(errors='replace')}"
            )
        queue = self.options.queue or fields.get("queue")
        if queue not in self._known_queues:
            queue = WITHOUT_QUEUE
        reject = Reject(str(error)[:1000], content[:100_000])
        return AddressedRow(str(queue), Row(known.digest, reject, known.first))

    def _queue(self, fields: Mapping[str, Any]) -> str:
        queue = self.options.queue or fields.get("queue")
        if not queue:
            raise InvalidOption("queue", "is missing", 'add a column "queue", or set option("queue", …)')
        if queue not in self._known_queues:
            self.options.keys(queue, cluster=False)
            self._known_queues.add(queue)
        return str(queue)

    def _job(self, fields: dict[str, Any], default_id: str) -> JobToAdd | EnvelopeToAdd:
        name = fields.get("name") or self.options.name
        if not name:
            raise InvalidOption("name", "is missing", 'add a column "name", or set option("name", …)')
        check_text("name", name)
        if self.options.kind == "bullmq":
            return self._bullmq_job(fields, str(name), default_id)
        return self._envelope(fields, str(name), default_id)

    def _bullmq_job(self, fields: dict[str, Any], name: str, default_id: str) -> JobToAdd:
        data = self._data(fields, OPTION_COLUMNS)
        options, wire = self._job_options(fields)
        if options.size_limit is not None and len(data) > options.size_limit:
            raise InvalidOption("data", f"has {len(data)} bytes", f"size_limit is {options.size_limit}")
        moment = options.timestamp
        return JobToAdd(
            name=name,
            data=data,
            options=wire,
            packed=options.packed,
            timestamp=self.now_ms if moment is None else round(moment.timestamp() * 1000),
            id=options.job_id or default_id,
        )

    def _job_options(self, fields: Mapping[str, Any]) -> tuple[JobOptions, dict[str, Any]]:
        """The options of a row and their wire form; rows mostly share them, so they are made once."""
        given = {
            name: option_value(name, fields[name])
            for name in self._option_columns(fields)
            if fields[name] is not None
        }
        key = tuple(given.items())
        known = self._known_options.get(key)
        if known is None:
            options = JobOptions.of(given)
            known = options, options.to_wire()
            if not {"job_id", "deduplication"} & given.keys() and len(self._known_options) < 1_000:
                self._known_options[key] = known
        return known

    def _option_columns(self, fields: Mapping[str, Any]) -> tuple[str, ...]:
        if self._columns is None:
            self._columns = tuple(name for name in fields if name in OPTION_COLUMNS)
        return self._columns

    def _envelope(self, fields: dict[str, Any], name: str, default_id: str) -> EnvelopeToAdd:
        payload = _payload(self._data(fields, ENVELOPE_COLUMNS))
        given = {
            key: plain_number(fields[key])
            for key in ("max_attempts", "correlation_id", "user_id", "source")
            if fields.get(key)
        }
        given.setdefault("correlation_id", default_id)
        moment = datetime.fromtimestamp(self.now_ms / 1000).astimezone()
        envelope = Envelope.new(name, payload, job_id=fields.get("job_id") or default_id, now=moment, **given)
        delay = fields.get("delay")
        due = None if delay is None else self.now_ms + round(to_seconds("delay", plain_number(delay)) * 1000)
        return EnvelopeToAdd(envelope.to_bytes(), due if delay else None)

    def _data(self, fields: Mapping[str, Any], reserved: frozenset[str]) -> bytes:
        """The data of a row as JSON."""
        if "data" in fields:
            value = fields["data"]
            raw = _json_text(value) if isinstance(value, str) else self._json({} if value is None else value)
        else:
            taken = reserved | {"name", "queue"}
            raw = self._json({key: value for key, value in fields.items() if key not in taken})
        if len(raw) > MAX_PAYLOAD_BYTES:
            raise InvalidOption("data", f"has {len(raw)} bytes", f"at most {MAX_PAYLOAD_BYTES} are allowed")
        return raw

    def _json(self, value: Any) -> bytes:
        return to_json(text_of_large(value) if self.options.numbers == "text" else plain_value(value))


def _payload(data: bytes) -> Any:
    """The payload of an envelope; numbers keep their digits."""
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:  # no object: the envelope refuses it by its type
        return msgspec.json.decode(data)


def _json_text(value: str) -> bytes:
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidOption(
            "data", f"is not JSON: {error}", "give a struct, a map, or valid JSON text"
        ) from None
    return value.encode()
