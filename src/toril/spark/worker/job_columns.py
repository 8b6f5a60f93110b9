"""Jobs as columns: what handlers of batches get, and the rows of the work source.

Guarantee: every job becomes a row. A job whose data does not fit the schema is told apart, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from toril.backends.bullmq import BullmqDelivery
from toril.errors import MalformedValue, PayloadMismatch
from toril.spark.sources.columns import TIME, constant, text_column, time_column

_FIXED: Final = (
    pa.field("queue", pa.string()),
    pa.field("job_id", pa.string()),
    pa.field("token", pa.string()),  # of the lock: it goes back with the result
    pa.field("position", pa.int64()),  # in the order in which jobs were taken
    pa.field("name", pa.string()),
    pa.field("data", pa.string()),  # JSON text, or the columns of `data_schema` as a struct
    pa.field("attempts_made", pa.int64()),
    pa.field("opts", pa.string()),  # JSON text
    pa.field("group", pa.string()),
    pa.field("added_at", TIME),
)


def work_schema(data_type: pa.DataType | None = None) -> pa.Schema:
    """The columns of jobs; `data_type` is that of the data, if it is parsed."""
    return pa.schema(
        [
            pa.field("data", data_type) if one.name == "data" and data_type is not None else one
            for one in _FIXED
        ]
    )


class JobColumns:
    """Makes columns of deliveries of one queue."""

    def __init__(self, queue: str, data_type: pa.DataType | None = None) -> None:
        self._queue = queue
        self._data_type = data_type
        self.schema = work_schema(data_type)

    def table(self, deliveries: Sequence[BullmqDelivery], data: pa.Array, first: int = 0) -> pa.Table:
        """The columns of deliveries, with their data as `data_of` returned it."""
        rows = len(deliveries)
        fields = [one.record.fields for one in deliveries]
        columns = [
            constant(self._queue, rows),
            pa.array([one.id for one in deliveries], pa.string()),
            pa.array([one.token for one in deliveries], pa.string()),
            pa.array(range(first, first + rows), pa.int64()),
            text_column([one.get(b"name") for one in fields]),
            data,
            pa.array([one.attempts_made for one in deliveries], pa.int64()),
            text_column([one.get(b"opts") for one in fields]),
            pa.array([_group(one.get(b"opts")) for one in fields], pa.string()),
            time_column([one.get(b"timestamp") for one in fields]),
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def data_of(self, deliveries: Sequence[BullmqDelivery]) -> tuple[pa.Array, dict[int, Exception]]:
        """The data of deliveries, and the reason of each position at which it does not fit the schema."""
        raw = [one.record.raw_data for one in deliveries]
        if self._data_type is None:
            return text_column(raw), {}
        try:
            return pa.array(_decoded(raw), self._data_type), {}
        except (msgspec.DecodeError, pa.ArrowException, TypeError, ValueError, OverflowError):
            return self._one_by_one(raw)

    def _one_by_one(self, raw: Sequence[bytes]) -> tuple[pa.Array, dict[int, Exception]]:
        values: list[object] = []
        reasons: dict[int, Exception] = {}
        for at, text in enumerate(raw):
            try:
                (value,) = _decoded([text])
                pa.array([value], self._data_type)
            except (msgspec.DecodeError, pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                value = None
                remedy = "correct the producer, or data_schema"
                reasons[at] = PayloadMismatch("data", f"does not fit data_schema: {error}", remedy)
            values.append(value)
        return pa.array(values, self._data_type), reasons


def _decoded(raw: Sequence[bytes]) -> list[object]:
    """One call of the parser for all; a text that is not JSON makes it raise."""
    values: list[object] = msgspec.json.decode(b"[" + b",".join(raw) + b"]")
    if len(values) != len(raw):
        raise MalformedValue("data", "is not one JSON value")
    return values


def _group(opts: bytes | None) -> str | None:
    if opts is None or b'"group"' not in opts:  # as for most jobs
        return None
    try:
        group = msgspec.json.decode(opts)["group"]
    except (msgspec.DecodeError, TypeError, KeyError):
        return None
    found = group.get("id") if isinstance(group, dict) else group
    return found if isinstance(found, str) else None
