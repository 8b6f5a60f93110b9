"""Retention: rows that are older than a table shall keep are removed.

Guarantee: a row is removed only when its whole day is older; rows of bronze only when silver has refined them. Readers
see a table before or after, never in between. Jobs that are not done stay, however old.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from toril.errors import InvalidOption
from toril.lake import TABLES, Lake, TableMissing
from toril.lake.delta_table import DataFile, LakeTable
from toril.lake.files import files_dataset
from toril.spark.pipeline.files.lineage import REFINED
from toril.spark.pipeline.files.parquet_files import write_file

KEPT: Final = "toril.keep"  # of every table: the number of the first day that it keeps, counted from 1970
_DAYS: Final = {"d": 1, "w": 7, "m": 30, "y": 365}
_SPAN: Final = re.compile(r"(\d+)([dwmy])")
_FIRST: Final = date(1970, 1, 1)
_EVENTS: Final = "bronze/events"
# The column by which a table without days tells the age of a row.
_AGES: Final = {
    "bronze/jobs": "snapshot_at",
    "bronze/logs": "snapshot_at",
    "bronze/stream_entries": "snapshot_at",
    "bronze/dlq_entries": "snapshot_at",
    "bronze/worker_reports": "ts",
    "silver/jobs": "updated_at",
    "silver/gaps": "ts",
    "gold/alerts": "raised_at",
}
Kept = Mapping[str, int]  # table → days


def parse_keep(text: str) -> Kept:
    """`bronze=30d,silver=1y,gold/alerts=8w`: days by table; a table counts before its layer."""
    layers: dict[str, int] = {}
    tables: dict[str, int] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, span = part.partition("=")
        name = name.strip().replace(".", "/")
        named = {name: _days(part, span)}
        if name in TABLES:
            tables |= named
        elif name in ("bronze", "silver", "gold"):
            layers |= named
        else:
            remedy = f"one of bronze, silver, gold, {', '.join(TABLES)}"
            raise InvalidOption("keep", f"{name!r} is no table and no layer", remedy)
    found = {spec.name: layers[spec.layer] for spec in TABLES.values() if spec.layer in layers}
    return {name: days for name, days in {**found, **tables}.items() if name in _AGES or _has_days(name)}


def _days(part: str, span: str) -> int:
    found = _SPAN.fullmatch(span.strip())
    if found is None or int(found[1]) < 1:
        raise InvalidOption(
            "keep", f"{part!r} has no span of time", "such as bronze=30d; units are d, w, m and y"
        )
    return int(found[1]) * _DAYS[found[2]]


def _has_days(name: str) -> bool:
    return TABLES[name].partition_by == ("day",)


def first_day_kept(log: LakeTable) -> date | None:
    """The first day that a table has kept whole; None when nothing was ever removed."""
    number = log.committed(KEPT)
    return None if number < 0 else _FIRST + timedelta(days=number)


@dataclass(frozen=True, slots=True)
class Retention:
    """Removes what is too old from the tables of a lake."""

    lake: Lake
    keep: Kept

    def run(self, now: datetime | None = None) -> dict[str, int]:
        """The number of rows that were removed, by table."""
        today = (now or datetime.now(UTC)).date()
        return {name: self._cut(name, today - timedelta(days=days)) for name, days in self.keep.items()}

    def _cut(self, name: str, first: date) -> int:
        try:
            log = self.lake.table(name)
        except TableMissing:
            return 0
        if name.startswith("bronze/") and not self._is_refined():
            return 0
        old, fresh = self._by_day(log, first) if _has_days(name) else self._by_row(log, first)
        if not old:
            return 0
        rows = sum(file.rows for file in old) - sum(file.rows for file in fresh)
        # What is left is not new: nothing is refined again.
        log.commit(fresh, removed=old, application=KEPT, version=(first - _FIRST).days, data_change=False)
        return rows

    def _is_refined(self) -> bool:
        try:
            events, jobs = self.lake.table(_EVENTS), self.lake.table("silver/jobs")
        except TableMissing:
            return False
        done = max(jobs.committed(REFINED), 0)
        return done >= events.version or not events.changes(done, events.version).files

    def _by_day(self, log: LakeTable, first: date) -> tuple[list[DataFile], list[DataFile]]:
        return [file for file in log.files() if (file.partition.get("day") or "9999") < first.isoformat()], []

    def _by_row(self, log: LakeTable, first: date) -> tuple[list[DataFile], list[DataFile]]:
        pairs = list(self._rewritten(log, first))
        return [old for old, _ in pairs], [new for _, new in pairs if new is not None]

    def _rewritten(self, log: LakeTable, first: date) -> Iterator[tuple[DataFile, DataFile | None]]:
        """Files that have old rows, each with the file that replaces it."""
        name, age = log.spec.name, _AGES[log.spec.name]
        moment = pa.scalar(
            datetime(first.year, first.month, first.day, tzinfo=UTC), pa.timestamp("us", tz="UTC")
        )
        columns = [field.name for field in log.spec.schema if field.name not in log.spec.partition_by]
        for file in log.files():
            if file.partition.get("phase") == "open":
                continue
            rows = files_dataset(self.lake, name, [file]).to_table(columns=columns)
            kept = rows.filter(pc.fill_null(pc.greater_equal(rows[age], moment), True))
            if kept.num_rows < rows.num_rows:
                new = write_file(self.lake, name, kept, file.partition) if kept.num_rows else None
                yield file, new
