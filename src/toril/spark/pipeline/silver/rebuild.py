"""Rebuild: computes silver again from all rows of bronze.

Guarantee: the rows are those that refining left, batch by batch, whatever the batches were; Redis is not read. Bronze
is read as it is now, not as its commits brought it, so files that were compacted and removed are not missed.

Events are refined by spans of time, in their order. An interrupted rebuild is recognised by its marks and starts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Final

from toril.lake import Lake, TableMissing
from toril.lake.delta_table import DataFile
from toril.lake.storage import file_system
from toril.spark.pipeline.engines.engine import Query, Rows
from toril.spark.pipeline.files.lineage import HASHES, RECONCILED, REFINED, reached
from toril.spark.pipeline.silver.refiner import EVENTS, HASHED, JOBS, Batch, RefinedUpTo, SilverRefiner

APPLICATION: Final = "toril.rebuild"
_LOGS: Final = "bronze/logs"
_ALWAYS: Final = datetime(9999, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date(1970, 1, 1)
_DAY: Final = timedelta(days=1)
_BY_MINUTE: Final = """
    select minute, count(*) as events
    from (select unix_millis(ts) - unix_millis(ts) % 60000 as minute from {events}) events
    group by minute order by minute
"""


@dataclass(frozen=True, slots=True)
class Span:
    """Events before a moment, and the files that hold those of them that are not refined yet."""

    files: tuple[DataFile, ...]
    start: datetime
    end: datetime


def is_cut_off(lake: Lake) -> bool:
    """Whether silver was left by an interrupted rebuild."""
    try:
        log = lake.table("silver/attempts")
        return log.committed(APPLICATION) >= 0 and lake.ensure(JOBS).committed(REFINED) < 0
    except TableMissing:
        return False


def clear(lake: Lake, layers: Sequence[str] = ("silver", "gold")) -> None:
    """Removes the tables of some layers."""
    for layer in layers:
        system, root = file_system(f"{lake.url}/{layer}", lake.storage_options)
        system.create_dir(root, recursive=True)
        system.delete_dir_contents(root)
    lake.reopen()


def lower_marks(lake: Lake) -> None:
    """Hashes cannot have been read for events that are not there: their table was rolled back."""
    events = lake.ensure(EVENTS)
    for name in (_LOGS, HASHED):
        log = lake.ensure(name)
        mark, at = log.committed(HASHES), log.committed(f"{HASHES}.time")
        if mark > events.version or (at > 0 and events.commit_time(mark) not in (None, at)):
            version = min(mark, events.version)
            log.commit([], application=HASHES, version=version, marks=reached(events, HASHES, version))


@dataclass(slots=True)
class SilverRebuilder:
    """Computes all of silver; the tables must be empty."""

    refiner: SilverRefiner

    def run(self) -> int:
        """Computes silver. Returns the number of events."""
        lake = self.refiner.lake
        reach = RefinedUpTo(lake.ensure(EVENTS).version, lake.ensure(HASHED).version)
        files = lake.ensure(EVENTS).files()
        spans = list(self._spans(files))
        for number, span in enumerate(spans):
            self.refiner.refine(self._batch(span, number, reach, last=number == len(spans) - 1))
        return sum(file.rows for file in files)

    def _spans(self, files: Sequence[DataFile]) -> Iterator[Span]:
        """Days together as long as they are small; one that is large, in parts."""
        by_day: dict[date, list[DataFile]] = {}
        for file in files:
            named = file.partition["day"]
            by_day.setdefault(date.fromisoformat(named) if named else _FIRST_DAY, []).append(file)
        start, held = _moment(_FIRST_DAY), list[DataFile]()
        for day in sorted(by_day):
            if held and _rows(held) + _rows(by_day[day]) > self.refiner.max_rows:
                yield Span(tuple(held), start, _moment(day))
                start, held = _moment(day), []
            held += by_day[day]
            if _rows(held) > self.refiner.max_rows:
                *parts, rest = self._parts(Span(tuple(held), start, _moment(day) + _DAY))
                yield from parts
                start = rest.start
        yield Span(tuple(held), start, _ALWAYS)

    def _parts(self, day: Span) -> list[Span]:
        """A large day, cut at full minutes."""
        rows_of_day = _within(Rows(lake=self.refiner.lake, table=EVENTS, files=day.files), day)
        counts = self.refiner.engine.collect(Query(sql=lambda _: _BY_MINUTE, tables={"events": rows_of_day}))
        cuts, rows = [day.start], 0
        for at, count in zip(*(counts[name].to_pylist() for name in ("minute", "events")), strict=True):
            if rows and rows + count > self.refiner.max_rows:
                cuts.append(datetime.fromtimestamp(at / 1000, UTC))
                rows = 0
            rows += count
        ends = [*cuts[1:], day.end]
        return [replace(day, start=one, end=end) for one, end in zip(cuts, ends, strict=True)]

    def _batch(self, span: Span, number: int, reach: RefinedUpTo, *, last: bool) -> Batch:
        lake = self.refiner.lake
        hashes = lake.ensure(HASHED)
        known = hashes.files() if self.refiner.fill or hashes.committed(RECONCILED) >= 0 else []
        return Batch(
            _within(Rows(lake=lake, table=EVENTS, files=span.files), span),
            _hashes_within(Rows(lake=lake, table=HASHED, files=known), span) if known else None,
            APPLICATION,
            number,
            self.refiner.marks_of(reach) if last else {},
            after_gap=hashes.committed(RECONCILED) >= 0,
        )


def _within(events: Rows, span: Span) -> Rows:
    start, end = _bounds(span)
    return events.limited(f"unix_millis(ts) >= {start} and unix_millis(ts) < {end}")


def _hashes_within(hashes: Rows, span: Span) -> Rows:
    """Those that complete attempts of the span, and those that were read in it after a gap."""
    start, end = _bounds(span)
    first, last = (f"cast(split_part({name}_event_id, '-', 1) as bigint)" for name in ("first", "last"))
    return hashes.limited(f"{last} >= {start} and coalesce({first}, {last}) < {end}")


def _bounds(span: Span) -> tuple[int, int]:
    return int(span.start.timestamp() * 1000), int(span.end.timestamp() * 1000)


def _moment(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)
