"""`toril.spark.enqueue`: rows as jobs, each once, however the DataFrame is partitioned.

Guarantee: rows with the same content meet in one partition, where they are counted; so under one `run` as many jobs are
added as there are rows, whatever the partitions of this save and of those before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from toril.errors import InvalidOption
from toril.spark.sinks.identity import CONTENT_COLUMN

Setting = str | int | float | bool | None


def enqueue_rows(
    rows: DataFrame, queue: str | None, run: str | None, key: str | Sequence[str] | None, **options: Setting
) -> None:
    """Writes the rows; those that are not known by `key` are shuffled by their content first."""
    from toril.spark import register

    if rows.isStreaming:
        raise InvalidOption(
            "df",
            "is a stream",
            'call enqueue in foreachBatch, with run=f"name-{batch_id}", or use writeStream',
        )
    register(rows.sparkSession)
    named = key if key is None or isinstance(key, str) else ",".join(key)
    given = {"queue": queue, "run": run, "key": named, **options}
    words = {name: _word(value) for name, value in given.items() if value is not None}
    shuffled = rows if named else by_content(rows)
    shuffled.write.format("toril").options(**words).mode("append").save()


def _word(value: Setting) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def by_content(rows: DataFrame) -> DataFrame:
    """The rows with a hash of their content, in partitions of that hash."""
    fields = sorted(rows.schema.fields, key=lambda field: field.name)
    parts = [_canonical(_column(field.name), field.dataType).alias(field.name) for field in fields]
    text = F.to_json(F.struct(*parts), {"ignoreNullFields": "false"})
    return rows.withColumn(CONTENT_COLUMN, F.sha2(text, 256)).repartition(CONTENT_COLUMN)


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")


def _canonical(value: Column, kind: DataType) -> Column:
    """The value in a form whose JSON depends on neither the order of a map nor the time zone of the session."""
    match kind:
        case MapType():
            pairs = F.transform(F.map_entries(value), lambda pair: _pair(pair, kind))
            return F.array_sort(pairs)
        case ArrayType():
            return F.transform(value, lambda one: _canonical(one, kind.elementType))
        case StructType():
            parts = [
                _canonical(value.getField(one.name), one.dataType).alias(one.name) for one in kind.fields
            ]
            return F.when(value.isNotNull(), F.struct(*parts)) if parts else value
        case VariantType():
            return F.to_json(value)
        case TimestampType():
            return F.unix_micros(value)
        case TimestampNTZType() | DateType() | DayTimeIntervalType():
            return value.cast("string")
        case _:
            return value


def _pair(pair: Column, kind: MapType) -> Column:
    return F.struct(
        _canonical(pair.getField("key"), kind.keyType).alias("key"),
        _canonical(pair.getField("value"), kind.valueType).alias("value"),
    )
