"""Job timelines: all jobs of a partition at once, in columns.

Guarantee: the result depends on the rows alone, not on their order or on how they are divided into batches.

Rows are sorted by job and then by their position in the stream. `_Timelines` then computes in one pass what a query
engine would compute with a window function each: what came before and after within the same job, the last known value,
and counts. A timeline is one use of a job id. It begins when the job is added, and its counts begin at zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from toril.spark.transforms.step_columns import (
    DONE,
    ENDS,
    FILL,
    HASH,
    POINT,
    STATE,
    TALLIES,
    TIMELINE_EVENTS,
)

_WORDS: Final = pa.array([*TIMELINE_EVENTS, STATE, HASH, FILL], pa.string())
_CODE: Final = {word: code for code, word in enumerate(_WORDS.to_pylist())}
_NONE: Final = -1  # the code of "no event", and the index of "no row"
# Rows that say by themselves how a job stands.
_RESETS: Final = [_CODE[word] for word in ("added", STATE, HASH)]
_ENDS: Final = [_CODE[word] for word in ENDS]
# Clocks of workers differ a little: what a hash says to have begun less than this after an event may be that event.
_CLOCKS_US: Final = 1_000_000

Column: TypeAlias = "pa.ChunkedArray | pa.Array"
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def timelines_of_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The turning points of the jobs of one partition; runs on executors."""
    rows = list(batches)
    if sum(batch.num_rows for batch in rows):
        yield from turning_points(pa.Table.from_batches(rows).combine_chunks()).to_batches()


def turning_points(steps: pa.Table) -> pa.Table:
    """Pickups that ended, ends without a pickup, first steps without a start, ends in gaps, and last steps."""
    job, order = _in_order(steps)
    steps = steps.take(pa.array(order))
    event = _codes(steps.column("event"))
    kept = ~_known_ends(steps, job, event)
    fills = kept & (event == _CODE[FILL])
    real = kept & ~fills
    job_timelines = _Timelines(_filter_steps(steps, real), job[real])
    if fills.any():
        job_timelines.fills = _EnrichmentHashes(
            _filter_steps(steps, fills), job[fills], (np.cumsum(real) - 1)[fills]
        )
    return job_timelines.points()


def _known_ends(steps: pa.Table, job: Numbers, event: Numbers) -> Flags:
    """Hashes of jobs that had ended, and whose end is known from the events before."""
    hashes = event == _CODE[HASH]
    if not hashes.any():
        return np.zeros(len(job), dtype=bool)
    rows = np.arange(len(job))
    latest: Numbers = np.maximum.accumulate(np.where(event == _CODE[FILL], _NONE, rows))
    before = np.concatenate([[_NONE], latest[:-1]])
    known = (before != _NONE) & (job[before] == job)
    at, began = (_micros(steps.column(name)) for name in ("ts", "was_active_at"))
    done = np.isin(event, [_CODE[word] for word in (*DONE, HASH)])
    done |= _as_booleans(pc.is_in(steps.column("was_state"), value_set=pa.array(DONE)))
    already_known: Flags = hashes & known & done[before] & (began <= at[before] + _CLOCKS_US)
    return already_known


class _EnrichmentHashes:
    """Hashes that complete attempts: which of its job's steps each one covers."""

    def __init__(self, rows: pa.Table, job: Numbers, at: Numbers) -> None:
        self.hash = rows.column("hash")
        self.job = job
        self.at = at  # the last step of any job that is not after the last event it was read for
        self.since = _micros(rows.column("since_ts")), _numbers(pc.fill_null(rows.column("since_seq"), 0))

    def covering(self, job_timelines: _Timelines, ends: Numbers) -> Numbers:
        """The hash for each of some ends of attempts; no hash covers an earlier timeline or a later batch."""
        found = np.searchsorted(self.at, ends, side="left")
        inside = (ends != _NONE) & (found < len(self.at))
        found = np.where(inside, found, 0)
        at, seq = job_timelines.at[ends], job_timelines.seq[ends]
        begun = (self.since[0][found] < at) | ((self.since[0][found] == at) & (self.since[1][found] <= seq))
        return np.where(inside & begun & (self.job[found] == job_timelines.job[ends]), found, _NONE)


class _Timelines:
    """Steps in the order of their timelines."""

    def __init__(self, steps: pa.Table, job: Numbers) -> None:
        self.steps, self.job = steps, job
        self.rows = np.arange(len(job))
        self.at, self.seq = _micros(steps.column("ts")), _numbers(steps.column("seq"))
        self.event = _codes(steps.column("event"))
        self.before, self.next, self.after_next = self._row_at(-1), self._row_at(1), self._row_at(2)
        self.resets: Flags = np.isin(self.event, _RESETS)
        begins = self.resets | (self.before == _NONE)
        self.start: Numbers = np.maximum.accumulate(
            np.where(begins, self.rows, 0)
        )  # where the timeline begins
        self.running = self._running()
        self.late_end = self._ends_without_start()
        self.fills: _EnrichmentHashes | None = None

    # --- what a window function would return -----------------------------------------------------------------------

    def _row_at(self, distance: int) -> Numbers:
        """The row that lies so far before or after within the same job."""
        rows = self.rows + distance
        inside = (rows >= 0) & (rows < len(self.rows))
        same = inside & (self.job[np.where(inside, rows, 0)] == self.job)
        return np.where(same, rows, _NONE)

    def _last_known(self, known: Flags) -> Numbers:
        """The latest row of the timeline so far in which something is known."""
        latest: Numbers = np.maximum.accumulate(np.where(known, self.rows, _NONE))
        return np.where(latest >= self.start, latest, _NONE)

    def _total(self, column: str, counted: Flags) -> Numbers:
        """How many rows of the timeline so far count, with what was counted before the batch."""
        base = _numbers(pc.fill_null(self.steps.column(column), 0))
        counts = np.where(self.resets, np.where(self.event == _CODE["added"], 0, base), counted)
        total: Numbers = np.cumsum(counts)
        before: Numbers = total - counts
        return total - before[self.start]

    def _event_at(self, rows: Numbers) -> Numbers:
        return np.where(rows == _NONE, _NONE, self.event[rows])

    # --- results ---------------------------------------------------------------------------------------------

    def _is_event(self, word: str) -> Flags:
        found: Flags = self.event == _CODE[word]
        return found

    def _running(self) -> Flags:
        """Rows after which the job runs."""
        active = _as_booleans(pc.equal(self.steps.column("was_state"), "active"))
        return self._is_event("active") | (self._is_event(STATE) & active)

    def _ends_without_start(self) -> Flags:
        """Events that end a pickup whose own event was lost in a gap."""
        was_active = _as_booleans(pc.equal(self.steps.column("prev"), "active"))
        late: Flags = np.isin(self.event, _ENDS) & was_active & ~self._ran_before()
        return late

    def _ran_before(self) -> Flags:
        ran: Flags = (self.before != _NONE) & self.running[self.before]
        return ran

    def _tallies(self) -> dict[str, Numbers]:
        """How the pickups of the timeline ended so far, by kind."""
        ends = (np.isin(self.event, _ENDS) & self._ran_before()) | self.late_end
        swept = self._event_at(self.next) == _CODE["stalled"]
        counted = {
            "returns": ends & self._is_event("waiting") & ~swept,
            "delays": ends & self._is_event("delayed"),
            "failures": ends & self._is_event("failed"),
            "completions": ends & self._is_event("completed"),
            "suspensions": ends & self._is_event("waiting-children"),
            "stalls": self._is_event("stalled"),
            "attempt": self._is_event("active") | self.late_end,
        }
        return {name: self._total(f"was_{name}", flags) for name, flags in counted.items()}

    def _moments(self, column: str, *words: str) -> pa.ChunkedArray:
        """When the last of some events was, or the time carried over from the last batch."""
        happens = np.isin(self.event, [_CODE[word] for word in words])
        times = pc.if_else(pa.array(happens), self.steps.column("ts"), self.steps.column(column))
        return _taken(times, self._last_known(_as_booleans(pc.is_valid(times))))

    def points(self) -> pa.Table:
        ended = self.running & np.isin(self._event_at(self.next), _ENDS)
        lacks_start = (self.before == _NONE) & ~self.resets
        kept = ended | self.late_end | (self.next == _NONE) | lacks_start | self._is_event(HASH)
        ends = np.where(self.late_end, self.rows, np.where(ended, self.next, _NONE))
        tallies = self._tallies()
        columns = self._columns(tallies) | self._end_columns(ends, tallies)
        return pa.table([columns[name] for name in POINT.names], schema=POINT).filter(pa.array(kept))

    def _columns(self, tallies: dict[str, Numbers]) -> dict[str, Column]:
        steps = self.steps
        named = self._last_known(_as_booleans(pc.is_valid(steps.column("step_name"))))
        same = ("queue", "job_id", "ts", "seq", "event", "was_state", "was_finished_at", "failed_reason")
        return {
            **{name: steps.column(name) for name in same},
            "name": _taken(steps.column("step_name"), named),
            **{name: pa.array(numbers) for name, numbers in tallies.items()},
            "added_at": self._moments("was_added_at", "added"),
            "ready_at": self._moments("was_ready_at", "waiting", "added"),
            "active_at": self._moments("was_active_at", "active"),
            "before_event": _taken(_WORDS, self._event_at(self.before)),
            "late_end": pa.array(self.late_end),
            "next_event": _taken(_WORDS, self._event_at(self.next)),
        }

    def _end_columns(self, ends: Numbers, tallies: dict[str, Numbers]) -> dict[str, Column]:
        """Of each attempt: its end, how many like it there were by then, and the hash that completes it."""
        after = np.where(ends == _NONE, _NONE, np.where(self.late_end, self.next, self.after_next))
        covering = self.fills.covering(self, ends) if self.fills is not None else np.full(len(ends), _NONE)
        hashes = self.fills.hash if self.fills is not None else pa.nulls(1, pa.string())
        known = (
            np.where(covering == _NONE, _NONE, self.fills.at[covering])
            if self.fills is not None
            else covering
        )
        return {
            "end_event": _taken(_WORDS, self._event_at(ends)),
            "end_ts": _taken(self.steps.column("ts"), ends),
            "end_reason": _taken(self.steps.column("failed_reason"), ends),
            "end_after": _taken(_WORDS, self._event_at(after)),
            **{f"end_{name}": _taken(pa.array(tallies[name]), ends) for name in TALLIES},
            "hash": pc.coalesce(_taken(hashes, covering), self.steps.column("hash")),
            "known_ts": _taken(self.steps.column("ts"), known),
            "known_event": _taken(_WORDS, self._event_at(known)),
            "known_attempt": _taken(pa.array(tallies["attempt"]), known),
            **{f"known_{name}": _taken(pa.array(tallies[name]), known) for name in TALLIES},
        }


def _in_order(steps: pa.Table) -> tuple[Numbers, Numbers]:
    """Which job each sorted row belongs to, and where that row was before."""
    queues, ids = (steps.column(name).combine_chunks().dictionary_encode() for name in ("queue", "job_id"))
    job = _numbers(queues.indices) * len(ids.dictionary) + _numbers(ids.indices)
    event = _codes(steps.column("event"))
    # The state that a job was left in comes first; a hash comes after the event that it was read with.
    is_step, is_fill, is_hash = event != _CODE[STATE], event == _CODE[FILL], event == _CODE[HASH]
    order = np.lexsort(
        (is_fill, is_hash, _numbers(steps.column("seq")), _micros(steps.column("ts")), is_step, job)
    )
    return job[order], order


def _filter_steps(steps: pa.Table, flags: Flags) -> pa.Table:
    return steps if flags.all() else steps.filter(pa.array(flags))


def _numbers(column: Column) -> Numbers:
    return np.asarray(column, dtype=np.int64)


def _micros(column: Column) -> Numbers:
    """Moments as numbers; an unknown one is before all others."""
    return _numbers(pc.fill_null(column.cast(pa.int64()), 0))


def _codes(column: Column) -> Numbers:
    return _numbers(pc.fill_null(pc.index_in(column, value_set=_WORDS), _NONE))


def _as_booleans(column: Column) -> Flags:
    return np.asarray(pc.fill_null(column, False), dtype=bool)


def _taken(column: Column, rows: Numbers) -> Column:
    return column.take(pa.array(rows, mask=rows == _NONE))
