"""Refine, second half: silver attempts become gold figures.

Guarantee: a figure is always computed from all attempts of its minute, hour or day, so sums equal silver's and
percentiles are exact; doing it twice changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from toril.lake import Lake, table_spec
from toril.lake.delta_table import DataFile
from toril.spark.pipeline.engines.engine import Engine, Query, Rows
from toril.spark.pipeline.files.lineage import ALERTED, FIGURED, reached
from toril.spark.pipeline.files.parquet_files import read_columns, write_file
from toril.spark.pipeline.gold.kept_alerts import merged_alerts
from toril.spark.pipeline.gold.worker_alerts import worker_alerts
from toril.spark.transforms.gold_sql import ERRORS, figures_sql
from toril.spark.transforms.rules import DEFAULT_RULES, Rule
from toril.spark.transforms.workers import WORKERS

APPLICATION: Final = FIGURED
_ATTEMPTS: Final = "silver/attempts"

Spans = list[tuple[str, int]]  # queue and beginning, in seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A gold table made of attempts: by which span of time, and how."""

    table: str
    label: str  # the column that holds the span
    seconds: int
    sql: str  # of `{attempts}`
    with_fingerprints: bool = False

    def span_of(self, moment: str) -> str:
        """The beginning of the span that a moment lies in, in milliseconds since 1970."""
        return f"unix_millis({moment}) - unix_millis({moment}) % {self.seconds * 1000}"

    def query(self, attempts: Rows, spans: Spans, old: Rows) -> Query:
        """The figures of some spans, and the old ones of all others."""
        names = ", ".join(table_spec(self.table).schema.names)
        chosen = "(select one.* from {{attempts}} one where {})".format(self._in_spans("one.ended_at"))
        fresh = self.sql.format(attempts=chosen)
        kept = f"select {names} from {{old}} one where not {self._in_spans(f'cast(one.{self.label} as timestamp)')}"
        sql = f"select {names} from ({fresh}) fresh" + (f" union all {kept}" if old.files else "")
        tables = {
            "attempts": replace(attempts, with_fingerprints=self.with_fingerprints),
            "spans": _table(spans),
        }
        return Query(sql=lambda _: sql, tables={**tables, **({"old": old} if old.files else {})})

    def _in_spans(self, moment: str) -> str:
        return (
            "exists (select 1 from {spans} spans"
            f" where spans.queue = one.queue and spans.span = {self.span_of(moment)})"
        )


FIGURES: Final = {
    "queue_minute": Figure(
        table="gold/queue_minute", label="minute", seconds=60, sql=figures_sql("minute", 60)
    ),
    "queue_hour": Figure(table="gold/queue_hour", label="hour", seconds=3600, sql=figures_sql("hour", 3600)),
    "errors": Figure(table="gold/errors", label="day", seconds=86_400, sql=ERRORS, with_fingerprints=True),
}
_DAYS_FOR_RULES: Final = 7  # so that a rule may compare with the week before


@dataclass(slots=True)
class GoldRefiner:
    """Brings gold up to date with silver."""

    engine: Engine
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
        if any(figures) or self._lacks_alerts() or (workers_changed and not self._alert_about_workers()):
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
        days = {datetime.fromtimestamp(at, UTC).date().isoformat() for _, at in spans}
        old = self._rows(figure.table, [file for day in sorted(days) for file in log.files(day=day)])
        query = figure.query(self._attempts(spans, figure), spans, old)
        self._commit(figure, self.engine.write(query, self.lake, figure.table), until, old.files)

    def _rows(self, name: str, files: Sequence[DataFile]) -> Rows:
        return Rows(lake=self.lake, table=name, files=files)

    def _commit(
        self, figure: Figure, files: list[DataFile], until: int, removed: Sequence[DataFile] = ()
    ) -> None:
        marks = reached(self.lake.ensure(_ATTEMPTS), APPLICATION, until)
        self.lake.ensure(figure.table).commit(
            files, removed=removed, application=APPLICATION, version=until, marks=marks
        )

    def _attempts(self, spans: Spans, figure: Figure) -> Rows:
        """Attempts of the time of some spans, from the files that can have such."""
        start, end = min(at for _, at in spans), max(at for _, at in spans) + figure.seconds
        first, last = (datetime.fromtimestamp(at, UTC).date().isoformat() for at in (start, end))
        files = self.lake.ensure(_ATTEMPTS).files()
        near = [file for file in files if first <= (file.partition.get("day") or first) <= last]
        moment = "unix_millis(ended_at)"
        rows = self._rows(_ATTEMPTS, near)
        return rows.limited(f"{moment} >= {start * 1000} and {moment} < {end * 1000}")

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

    def _lacks_alerts(self) -> bool:
        """Whether a run ended after it had committed figures and before it had committed their alerts."""
        return max(self.lake.ensure("gold/alerts").committed(ALERTED), 0) < self._refined_version()

    def _refined_version(self) -> int:
        return max(self.lake.ensure("gold/queue_minute").committed(APPLICATION), 0)

    def _refresh_alerts(self) -> None:
        """Rules look at the days that changed and the week before; alerts that are older stay as they are."""
        since = self._first_day_touched() - timedelta(days=_DAYS_FOR_RULES)
        log = self.lake.ensure("gold/alerts")
        tables = {
            name: self._since(f"gold/{name}", since) for name in ("queue_minute", "queue_hour", "errors")
        }
        tables["workers"] = self._rows("gold/workers", self.lake.ensure("gold/workers").files())
        rows = merged_alerts(self.lake, self.engine.alerts(tables, self.rules), since)
        files = [write_file(self.lake, "gold/alerts", rows, {})] if rows.num_rows else []
        marks = {ALERTED: self._refined_version()}
        log.commit(files, removed=log.files(), application=APPLICATION, version=log.version + 1, marks=marks)

    def _first_day_touched(self) -> date:
        moments = [at for spans in self._minutes.values() for _, at in spans]
        return datetime.fromtimestamp(min(moments), UTC).date() if moments else datetime.now(UTC).date()

    def _since(self, name: str, day: date) -> Rows:
        files = self.lake.ensure(name).files()
        recent = [file for file in files if (file.partition.get("day") or "") >= day.isoformat()]
        return self._rows(name, recent)


def _table(spans: Spans) -> pa.Table:
    queues, starts = [queue for queue, _ in spans], [at * 1000 for _, at in spans]
    return pa.table({"queue": pa.array(queues, pa.string()), "span": pa.array(starts, pa.int64())})
