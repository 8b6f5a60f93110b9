"""Refine, second half: silver attempts become gold figures.

Guarantee: a figure is always computed from all attempts of its minute, hour or day, so sums equal silver's and
percentiles are exact; doing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from toril.lake import Lake, table_spec
from toril.lake._log import DataFile
from toril.spark.pipeline._staging import frame_of, read_table, stage
from toril.spark.transforms import DEFAULT_RULES, Rule, alerts, errors, queue_hour, queue_minute, workers

APPLICATION: Final = "toril.gold"
_ATTEMPTS: Final = "silver/attempts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A gold table made of attempts: by which span of time, and how."""

    table: str
    span: Column
    label: str
    length: timedelta
    transform: Callable[[DataFrame], DataFrame]


def _figures() -> dict[str, Figure]:
    # Columns need a running Spark, so these are made when asked for.
    ended = F.col("ended_at")
    return {
        "queue_minute": Figure(
            table="gold/queue_minute",
            span=F.date_trunc("minute", ended),
            label="minute",
            length=timedelta(minutes=1),
            transform=queue_minute,
        ),
        "queue_hour": Figure(
            table="gold/queue_hour",
            span=F.date_trunc("hour", ended),
            label="hour",
            length=timedelta(hours=1),
            transform=queue_hour,
        ),
        "errors": Figure(
            table="gold/errors",
            span=F.date_trunc("day", ended),
            label="day",
            length=timedelta(days=1),
            transform=errors,
        ),
    }


@dataclass(slots=True)
class GoldRefiner:
    """Moves gold on to what silver has."""

    spark: SparkSession
    lake: Lake
    rules: Sequence[Rule] = DEFAULT_RULES

    def run(self, names: Sequence[str] = ("queue_minute", "queue_hour", "errors")) -> bool:
        """Brings the figures named up to date, then workers and alerts; False when there was nothing new."""
        figures = _figures()
        changed = [self._refresh(figures[name]) for name in names]
        reported = self._refresh_workers()
        if any(changed) or reported:
            self._refresh_alerts()
        return any(changed) or reported

    def _refresh(self, figure: Figure) -> bool:
        attempts_log = self.lake.ensure(_ATTEMPTS)
        log = self.lake.ensure(figure.table)
        done, until = max(log.committed(APPLICATION), 0), attempts_log.version
        if until <= done:
            return False
        fresh = attempts_log.added_between(done, until)
        touched = self._touched(figure, fresh)
        if touched is None:
            log.commit([], application=APPLICATION, version=until)
            return False
        self._replace(figure, touched, until)
        return True

    def _touched(self, figure: Figure, fresh: Sequence[DataFile]) -> list[tuple[str, int]] | None:
        """Queue and span of every attempt that is new."""
        if not fresh:
            return None
        rows = frame_of(self.spark, self.lake, _ATTEMPTS, fresh)
        if figure.label == "day":
            rows = rows.where(F.col("error").isNotNull())
        # Seconds, not timestamps: collected timestamps come in the zone of the machine.
        found = rows.select("queue", F.unix_seconds(figure.span).alias("span")).distinct().collect()
        return [(row.queue, row.span) for row in found] or None

    def _replace(self, figure: Figure, touched: list[tuple[str, int]], until: int) -> None:
        spans = [datetime.fromtimestamp(span, UTC) for _, span in touched]
        marks = F.broadcast(self.spark.createDataFrame(touched, "queue string, span long"))
        rows = self._attempts_within(min(spans), max(spans) + figure.length)
        concerned = _touched_only(rows, figure.span, marks, "semi")
        log = self.lake.ensure(figure.table)
        old_files = [
            file for day in sorted({span.date().isoformat() for span in spans}) for file in log.files(day=day)
        ]
        old = frame_of(self.spark, self.lake, figure.table, old_files)
        kept = _touched_only(old, F.col(figure.label).cast("timestamp"), marks, "anti")
        names = table_spec(figure.table).schema.names
        whole = figure.transform(concerned).select(*names).unionByName(kept.select(*names)).coalesce(1)
        files = stage(whole, self.lake, figure.table)
        log.commit(files, removed=old_files, application=APPLICATION, version=until)

    def _attempts_within(self, start: datetime, end: datetime) -> DataFrame:
        """Attempts that ended in a stretch of time, from the files that can hold such."""
        first, last = start.date().isoformat(), end.date().isoformat()
        files = self.lake.ensure(_ATTEMPTS).files()
        near = [file for file in files if first <= (file.partition.get("day") or first) <= last]
        rows = frame_of(self.spark, self.lake, _ATTEMPTS, near)
        return rows.where((F.col("ended_at") >= F.lit(start)) & (F.col("ended_at") < F.lit(end)))

    def _refresh_workers(self) -> bool:
        reports, log = self.lake.ensure("bronze/worker_reports"), self.lake.ensure("gold/workers")
        if reports.version <= max(log.committed(APPLICATION), 0):
            return False
        rows = workers(read_table(self.spark, self.lake, "bronze/worker_reports")).coalesce(1)
        files = stage(rows, self.lake, "gold/workers")
        log.commit(files, removed=log.files(), application=APPLICATION, version=reports.version)
        return True

    def _refresh_alerts(self) -> None:
        log = self.lake.ensure("gold/alerts")
        tables = {
            name: read_table(self.spark, self.lake, f"gold/{name}")
            for name in ("queue_minute", "queue_hour", "errors", "workers")
        }
        found = alerts(self.spark, tables, self.rules)
        old_files = log.files()
        # Alerts about a worker are of the moment of its report: the table of workers forgets it, this one does not.
        old = frame_of(self.spark, self.lake, "gold/alerts", old_files).where(F.col("subject") != "")
        whole = found.unionByName(old).dropDuplicates(["rule", "queue", "subject", "at"]).coalesce(1)
        files = stage(whole, self.lake, "gold/alerts")
        log.commit(files, removed=old_files, application=APPLICATION, version=log.version + 1)


def _touched_only(rows: DataFrame, span: Column, marks: DataFrame, how: str) -> DataFrame:
    return rows.withColumn("span", F.unix_seconds(span)).join(marks, ["queue", "span"], how).drop("span")
