"""Bytes of Redis as Arrow columns, without a Python object per cell where possible.

Guarantee: every value is kept: text that is not UTF-8 is kept with replacement characters, invalid numbers
become null (and the caller keeps the raw text).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

TIME = pa.timestamp("us", tz="UTC")


def text_column(values: Sequence[bytes | None]) -> pa.Array:
    """Text; checked and converted in bulk, and one by one only if something in it is not UTF-8."""
    raw = pa.array(values, pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        words = [None if one is None else one.decode(errors="replace") for one in values]
        return pa.array(words, pa.string())


def whole_number(value: bytes | str | None) -> int | None:
    """A number as Redis and JavaScript write it; None for anything else."""
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        number = float(value)
        return int(number) if abs(number) < 2**63 else None
    except (ValueError, OverflowError):
        return None


def number_column(values: Sequence[bytes | None]) -> pa.Array:
    """Whole numbers; anything else becomes null."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string()).cast(pa.int64())
    except pa.ArrowInvalid:
        numbers = (whole_number(one) for one in values)
        return pa.array([one if one is None or abs(one) < 2**63 else None for one in numbers], pa.int64())


# Beyond the year 9999 Python has no dates; such a value is an error of whoever wrote it.
_LAST_MS = 253_402_300_799_999


def time_column(values: Sequence[bytes | None]) -> pa.Array:
    """Milliseconds since 1970 as timestamps."""
    ms = number_column(values)
    sane = pc.and_(pc.greater_equal(ms, 0), pc.less_equal(ms, _LAST_MS))
    return pc.if_else(sane, ms, pa.scalar(None, pa.int64())).cast(pa.timestamp("ms", tz="UTC")).cast(TIME)


def id_columns(ids: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Stream ids as time and sequence number."""
    parts = pc.split_pattern(ids, "-")
    ms = pc.list_element(parts, 0).cast(pa.int64())
    return ms.cast(pa.timestamp("ms", tz="UTC")).cast(TIME), pc.list_element(parts, 1).cast(pa.int64())


def assemble(schema: pa.Schema, columns: Mapping[str, pa.Array | pa.ChunkedArray], rows: int) -> pa.Table:
    """A table in the schema's order; columns that are missing are null."""
    arrays: list[object] = []
    for field in schema:
        column = columns.get(field.name)
        arrays.append(pa.nulls(rows, field.type) if column is None else column)
    return pa.table(arrays, schema=schema)


def constant(value: str, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), rows)
