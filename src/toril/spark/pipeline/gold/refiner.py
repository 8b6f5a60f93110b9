"""Refine, second half: silver attempts become gold figures.

Guarantee: a figure is always computed from all attempts of its minute, hour or day, so sums equal silver's and
percentiles are exact; doing it twice changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from toril.lake import Lake, table_spec
from toril.lake.delta_table import DataFile
from toril.spark.pipeline.files.lineage import FIGURED, reached
from toril.spark.pipeline.files.parquet import read_columns, write_file
from toril.spark.pipeline.files.staging import frame_of, read_table, stage
from toril.spark.pipeline.gold.worker_alerts import worker_alerts
from toril.spark.transforms import DEFAULT_RULES, Rule, alerts, errors, queue_hour, queue_minute
from toril.spark.transforms.workers import WORKERS

APPLICATION: Final = FIGURED
_ATTEMPTS: Final = "silver/attempts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A gold table made of attempts: by which span of time, and how."""

    table: str
    label: str  # the column that holds the span
    seconds: int
    transform: Callable[[DataFrame], DataFrame]

    def span_of(self, moment: Column) -> Column:
        """The beginning of the span that a moment lies in, in seconds since 1970."""
        return F.floor(F.unix_seconds(moment) / self.seconds) * self.seconds


FIGURES: Final = {
    "queue_minute": Figure(table="gold/queue_minute", label="minute", seconds=60, transform=queue_minute),
    "queue_hour": Figure(table="gold/queue_hour", label="hour", seconds=3600, transform=queue_hour),
    "errors": Figure(table="gold/errors", label="day", seconds=86_400, transform=errors),
}
# Up to that many spans are named in the plan itself; more are joined.
_FEW_SPANS: Final = 200

_DAYS_FOR_RULES: Final = 7  # so that a rule may compare with the week before

Spans = list[tuple[str, int]]  # queue and beginning, in seconds since 1970


@dataclass(slots=True)
class GoldRefiner:
    """Brings gold up to date with silver."""

    spark: SparkSession
    lake: Lake
    rules: Sequence[Rule] = DEFAULT_RULES
    _minutes: dict[tuple[int, int], Spans] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, names: Sequence[str] = tuple(FIGURES)) -> bool:
        """Brings the figures named up to date, then workers and alerts; False when there was nothing new."""
        # Small jobs: most of each is planning, not computing.
        with ThreadPoolExecutor(len(names) + 1) as at_once:
            parts = [at_once.submit(self._refresh, FIGURES[name]) for name in names]
            parts.append(at_once.submit(self._refresh_workers))
            *figures, workers_changed = [part.result() for part in parts]
        if any(figures) or (workers_changed and not self._alert_about_workers()):
            self._refresh_alerts()
        return any(figures) or workers_changed

    def _refresh(self, figure: Figure) -> bool:
        log = self.lake.ensure(figure.table)
        done, until = max(log.committed(APPLICATION), 0), self.lake.ensure(_ATTEMPTS).version
        if until <= done:
            return False
        minutes = self._touched_minutes(done, until)
        if minutes:
            whole = sorted({(queue, at // figure.seconds * figure.seconds) for queue, at in minutes})
            self._replace(figure, whole, until)
        else:
            self._commit(figure, [], until)
        return bool(minutes)

    def _touched_minutes(self, done: int, until: int) -> Spans:
        """Queue and minute of every attempt that is new; hours and days follow from them."""
        with self._lock:  # the figures ask at once, and for the same minutes
            return self._looked_up(done, until)

    def _looked_up(self, done: int, until: int) -> Spans:
        if (done, until) not in self._minutes:
            fresh = self.lake.ensure(_ATTEMPTS).added_between(done, until)
            found = {span for file in fresh for span in self._minutes_in(file)}
            self._minutes[done, until] = sorted(found)
        return self._minutes[done, until]

    def _minutes_in(self, file: DataFile) -> Iterator[tuple[str, int]]:
        """Two columns of one file, read by the driver: a Spark job would take longer to plan than this takes."""
        rows = read_columns(self.lake, _ATTEMPTS, file, ["queue", "ended_at"])
        seconds = rows["ended_at"].cast(pa.timestamp("s", tz="UTC"), safe=False).cast(pa.int64())
        minutes = pa.table({"queue": rows["queue"], "minute": pc.divide(seconds, 60)})
        for row in minutes.group_by(["queue", "minute"]).aggregate([]).to_pylist():
            yield row["queue"], row["minute"] * 60

    def _replace(self, figure: Figure, spans: Spans, until: int) -> None:
        log = self.lake.ensure(figure.table)
        days = sorted({datetime.fromtimestamp(at, UTC).date().isoformat() for _, at in spans})
        old_files = [file for day in days for file in log.files(day=day)]
        old = frame_of(self.spark, self.lake, figure.table, old_files)
        kept = self._within(old, figure.span_of(F.col(figure.label).cast("timestamp")), spans, inside=False)
        rows = self._within(
            self._attempts(spans, figure), figure.span_of(F.col("ended_at")), spans, inside=True
        )
        names = table_spec(figure.table).schema.names
        fresh = figure.transform(rows).select(*names)
        whole = fresh.unionByName(kept.select(*names)) if old_files else fresh
        self._commit(figure, stage(whole.repartition(1), self.lake, figure.table), until, old_files)

    def _commit(
        self, figure: Figure, files: list[DataFile], until: int, removed: Sequence[DataFile] = ()
    ) -> None:
        marks = reached(self.lake.ensure(_ATTEMPTS), APPLICATION, until)
        self.lake.ensure(figure.table).commit(
            files, removed=removed, application=APPLICATION, version=until, marks=marks
        )

    def _within(self, rows: DataFrame, span: Column, spans: Spans, *, inside: bool) -> DataFrame:
        if len(spans) <= _FEW_SPANS:
            named = F.concat_ws("\n", span.cast("string"), "queue").isin(
                [f"{at}\n{queue}" for queue, at in spans]
            )
            return rows.where(named if inside else ~named)
        marks = F.broadcast(self.spark.createDataFrame(spans, "queue string, span long"))
        found = rows.withColumn("span", span).join(marks, ["queue", "span"], "semi" if inside else "anti")
        return found.drop("span")

    def _attempts(self, spans: Spans, figure: Figure) -> DataFrame:
        times = [at for _, at in spans]
        return self._attempts_within(
            datetime.fromtimestamp(min(times), UTC), datetime.fromtimestamp(max(times) + figure.seconds, UTC)
        )

    def _attempts_within(self, start: datetime, end: datetime) -> DataFrame:
        """Attempts that ended in a span of time, from the files that may contain them."""
        first, last = start.date().isoformat(), end.date().isoformat()
        files = self.lake.ensure(_ATTEMPTS).files()
        near = [file for file in files if first <= (file.partition.get("day") or first) <= last]
        rows = frame_of(self.spark, self.lake, _ATTEMPTS, near)
        return rows.where((F.col("ended_at") >= F.lit(start)) & (F.col("ended_at") < F.lit(end)))

    def _refresh_workers(self) -> bool:
        reports, log = self.lake.ensure("bronze/worker_reports"), self.lake.ensure("gold/workers")
        if reports.version <= max(log.committed(APPLICATION), 0):
            return False
        rows = self.lake.query(WORKERS.format(reports="bronze.worker_reports")).cast(log.spec.schema)
        files = [write_file(self.lake, "gold/workers", rows, {})] if rows.num_rows else []
        marks = reached(reports, APPLICATION, reports.version)
        log.commit(files, removed=log.files(), application=APPLICATION, version=reports.version, marks=marks)
        return True

    def _alert_about_workers(self) -> bool:
        """Adds alerts about workers without Spark, if no figure has changed. Returns False if a rule needs Spark."""
        found = worker_alerts(self.lake, self.rules)
        if found is None:
            return False
        if found.num_rows:
            log = self.lake.ensure("gold/alerts")
            file = write_file(self.lake, "gold/alerts", found, {})
            log.commit([file], application=APPLICATION, version=log.version + 1)
        return True

    def _refresh_alerts(self) -> None:
        """Rules look at the days that changed and the week before; alerts that are older stay as they are."""
        since = self._first_day_touched() - timedelta(days=_DAYS_FOR_RULES)
        log = self.lake.ensure("gold/alerts")
        tables = {
            name: self._since(f"gold/{name}", since) for name in ("queue_minute", "queue_hour", "errors")
        }
        tables["workers"] = read_table(self.spark, self.lake, "gold/workers")
        found = alerts(self.spark, tables, self.rules)
        old_files = log.files()
        # Alerts about a worker are of the moment of its report: the table of workers forgets it, this one does not.
        lasting = (F.col("subject") != "") | (F.col("raised_at") < F.lit(since.isoformat()).cast("timestamp"))
        old = frame_of(self.spark, self.lake, "gold/alerts", old_files).where(lasting)
        whole = found.unionByName(old).dropDuplicates(["rule", "queue", "subject", "raised_at"]).coalesce(1)
        files = stage(whole, self.lake, "gold/alerts")
        log.commit(files, removed=old_files, application=APPLICATION, version=log.version + 1)

    def _first_day_touched(self) -> date:
        moments = [at for spans in self._minutes.values() for _, at in spans]
        return datetime.fromtimestamp(min(moments), UTC).date() if moments else datetime.now(UTC).date()

    def _since(self, name: str, day: date) -> DataFrame:
        files = self.lake.ensure(name).files()
        recent = [file for file in files if (file.partition.get("day") or "") >= day.isoformat()]
        return frame_of(self.spark, self.lake, name, recent)
