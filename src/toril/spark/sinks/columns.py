"""The columns of a write, checked before the first row.

Guarantee: a column that a write needs is there, and none is ignored: beside a column `data` every column
is an option or is refused.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

from pyspark.sql.types import DataType, StructType

from toril.errors import InvalidOption
from toril.spark.sinks._rows import ENVELOPE_COLUMNS, OPTION_COLUMNS
from toril.spark.sinks.identity import CONTENT_COLUMN
from toril.spark.sinks.options import SinkOptions

_ALWAYS: Final = frozenset({"name", "queue", "data", CONTENT_COLUMN})


def check_columns(options: SinkOptions, schema: StructType) -> None:
    """Refuses a write whose columns cannot become jobs, or would not all be used."""
    columns = set(schema.names)
    if options.queue is None and "queue" not in columns:
        raise InvalidOption("queue", "is missing", 'set option("queue", "emails"), or add a column "queue"')
    if options.op != "enqueue":
        _check_act(options, columns)
        return
    if options.name is None and "name" not in columns:
        raise InvalidOption("name", "is missing", 'set option("name", "send"), or add a column "name"')
    _check_key(options, schema)
    if "data" in columns:
        _check_beside_data(options, columns)


def _check_act(options: SinkOptions, columns: set[str]) -> None:
    needed = "job_id" if options.kind == "bullmq" else "id"
    if needed not in columns:
        raise InvalidOption(needed, "is missing", f"op={options.op} needs the column {needed!r}")


def _check_key(options: SinkOptions, schema: StructType) -> None:
    for path in options.key:
        if path not in schema.names and not _is_part(schema, path):
            known = ", ".join(name for name in schema.names if name != CONTENT_COLUMN)
            raise InvalidOption(
                "key", f"there is no column {path!r}", f"name some of {known}, or parts of them"
            )


def _is_part(schema: StructType, path: str) -> bool:
    """Whether `data.id` leads through structs to a value."""
    kind: DataType = schema
    for name in path.split("."):
        if not isinstance(kind, StructType) or name not in kind.names:
            return False
        kind = kind[name].dataType
    return True


def _check_beside_data(options: SinkOptions, columns: set[str]) -> None:
    known = OPTION_COLUMNS if options.kind == "bullmq" else ENVELOPE_COLUMNS
    meant = known | _ALWAYS | {path.partition(".")[0] for path in options.key} | set(options.key)
    for column in sorted(columns - meant):
        near = _nearest(column, known | {"name", "queue"})
        remedy = f"rename it to {near}" if near else f"job options are {', '.join(sorted(known))}"
        raise InvalidOption(
            column,
            "is no option of a job, and beside a column data it would be dropped",
            f"{remedy}, put it into data, or drop it",
        )


def _nearest(column: str, known: frozenset[str] | set[str]) -> str | None:
    """The option that was probably meant: `jobId` is job_id, `atempts` is attempts."""
    plain = {_plain(name): name for name in sorted(known)}
    found = difflib.get_close_matches(_plain(column), plain, n=1, cutoff=0.7)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
