"""Reading event streams: pages of XRANGE, grouped by shape, turned into columns.

Guarantee: every entry becomes a row, also one of an unknown event or with unknown fields (they are kept in `extra`),
and what could not be read any more becomes a gap row with the exact number, or without one where it is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from toril.commands.streams import entries
from toril.lake.tables import EVENTS, GAP_EVENT
from toril.spark.sources.columns import assemble, constant, id_columns, text_column, time_column
from toril.spark.sources.positions import Stretch, id_parts
from toril.transport import BlockingTransport

# Enough to make a round trip cheap, small enough to hold the server for a few milliseconds only.
PAGE: Final = 5_000

_SCHEMA: Final = EVENTS.schema
SOURCE_SCHEMA: Final = _SCHEMA.remove(_SCHEMA.get_field_index("day"))

_TEXT_FIELDS: Final = {
    b"event": "event",
    b"jobId": "job_id",
    b"name": "name",
    b"prev": "prev",
    b"data": "data",
    b"returnvalue": "returnvalue",
    b"failedReason": "failed_reason",
}
_DELAY: Final = b"delay"


@dataclass(frozen=True, slots=True)
class Shape:
    """Entries with the same field names, in the order of the stream."""

    names: tuple[bytes, ...]
    rows: list[int]
    values: list[Sequence[bytes]]


def read_stretch(transport: BlockingTransport, one: Stretch) -> Iterator[pa.Table]:
    """The events of a stretch, page by page."""
    after = one.start.id
    while id_parts(after) < id_parts(one.end.id):
        page = transport.run(entries(one.key, after, one.end.id, PAGE))
        if not page:
            return
        after = page[-1][0].decode()
        yield events_table(one.queue, page)


def read_with_gap(transport: BlockingTransport, one: Stretch) -> Iterator[pa.Table]:
    """The events of a stretch whose ends have ordinals, and a gap row for what is missing."""
    rows, first_id = 0, None
    for table in read_stretch(transport, one):
        first_id = first_id or table["id"][0].as_py()
        rows += table.num_rows
        yield table
    gap = gap_table(one, rows, first_id)
    if gap is not None:
        yield gap


def gap_table(one: Stretch, rows: int, first_id: str | None, known_id: str | None = None) -> pa.Table | None:
    """The gap rows of a stretch of which `rows` events were read; None when nothing is missing.

    What was lost with a stream that was deleted cannot be counted; what the new one lost since can. `first_id` is the
    first event that was read, `known_id` the last one before the stretch, if the stretch does not have it.
    """
    # More rows than expected: the stream was deleted and grew beyond its old count before anybody looked.
    recreated = one.recreated or (one.expected is not None and rows > one.expected)
    lost = 0 if one.expected is None else max(one.expected - rows, 0)
    found = [gap_row(one, None, "recreated", first_id, known_id)] if recreated else []
    found += [gap_row(one, lost, "trimmed", first_id, known_id)] if lost else []
    return pa.concat_tables(found) if found else None


def gap_row(
    one: Stretch, lost: int | None, reason: str, first_id: str | None, known_id: str | None = None
) -> pa.Table:
    """A gap has the time of the first event after it: all its events are older."""
    at, seq = id_columns(pa.array([first_id or one.end.id], pa.string()))
    columns = {
        "queue": constant(one.queue, 1),
        "id": constant(known_id or one.start.id, 1),
        "ts": at,
        "seq": seq,
        "event": constant(GAP_EVENT, 1),
        "extra": constant(json.dumps({"reason": reason, "until": one.end.id}), 1),
        "lost": pa.array([lost], pa.int64()),
    }
    return assemble(SOURCE_SCHEMA, columns, 1)


def events_table(queue: str, page: Sequence[Any]) -> pa.Table:
    """One page of raw entries as a table, in the order of the stream."""
    ids = text_column([entry[0] for entry in page])
    at, seq = id_columns(ids)
    columns: dict[str, Any] = {"queue": constant(queue, len(page)), "id": ids, "ts": at, "seq": seq}
    shapes = _shapes(page)
    for field, column in _TEXT_FIELDS.items():
        columns[column] = _text_column(shapes, field, len(page))
    columns["delay_until"] = _delays(shapes, len(page))
    columns["extra"] = _extra(shapes, len(page))
    return assemble(SOURCE_SCHEMA, {k: v for k, v in columns.items() if v is not None}, len(page))


def _shapes(page: Sequence[Any]) -> list[Shape]:
    known: dict[tuple[bytes, ...], Shape] = {}
    for row, (_, flat) in enumerate(page):
        names = tuple(flat[::2])
        shape = known.get(names)
        if shape is None:
            shape = known[names] = Shape(names, [], [])
        shape.rows.append(row)
        shape.values.append(flat)
    return list(known.values())


def _field_column(shapes: Sequence[Shape], field: bytes, size: int) -> list[bytes | None] | None:
    """The values of one field at their rows; None when no entry has it."""
    holders = [shape for shape in shapes if field in shape.names]
    if not holders:
        return None
    column: list[bytes | None] = [None] * size
    for shape in holders:
        at = 2 * shape.names.index(field) + 1
        for row, flat in zip(shape.rows, shape.values, strict=True):
            column[row] = flat[at]
    return column


def _text_column(shapes: Sequence[Shape], field: bytes, size: int) -> pa.Array | None:
    column = _field_column(shapes, field, size)
    return None if column is None else text_column(column)


def _delays(shapes: Sequence[Shape], size: int) -> pa.Array | None:
    column = _field_column(shapes, _DELAY, size)
    return None if column is None else time_column(column)


def _extra(shapes: Sequence[Shape], size: int) -> pa.Array | None:
    strange = [shape for shape in shapes if not _TEXT_FIELDS.keys() | {_DELAY} >= set(shape.names)]
    if not strange:
        return None
    column: list[str | None] = [None] * size
    for shape in strange:
        for row, flat in zip(shape.rows, shape.values, strict=True):
            column[row] = _unknown_fields(flat)
    return pa.array(column, pa.string())


def _unknown_fields(flat: Sequence[bytes]) -> str:
    pairs = zip(flat[::2], flat[1::2], strict=False)
    return json.dumps(
        {
            name.decode(errors="replace"): value.decode(errors="replace")
            for name, value in pairs
            if name not in _TEXT_FIELDS and name != _DELAY
        },
        ensure_ascii=False,
    )
