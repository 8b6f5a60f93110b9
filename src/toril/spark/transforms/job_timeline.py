"""The walk along lives: all jobs of a partition at once, in columns.

Guarantee: the result depends on the rows alone, not on their order or on how they are cut into batches; what Python
does once per batch would take a query engine one pass over one sort for every function it looks through.

Rows are sorted by job and then by their place in the stream, and `_Lives` answers the questions that a window would:
what came before and after within the same job, what was the last known value, how many so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

STATE: Final = "toril.state"  # the pseudo-event that carries a job over from the last batch
ENDS: Final = ("completed", "failed", "waiting", "delayed", "waiting-children", "stalled")
LIFE_EVENTS: Final = ("added", "active", "removed", *ENDS)
_WORDS: Final = pa.array([*LIFE_EVENTS, STATE], pa.string())
_CODE: Final = {word: code for code, word in enumerate(_WORDS.to_pylist())}
_NONE: Final = -1  # the code of "no event", and the index of "no row"

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def walk(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The turning points of the jobs of one partition; runs on executors."""
    rows = list(batches)
    if sum(batch.num_rows for batch in rows):
        yield from turning_points(pa.Table.from_batches(rows).combine_chunks()).to_batches()


def turning_points(steps: pa.Table) -> pa.Table:
    """Pickups that ended, ends without a pickup, beginnings in the middle, and the last step of each job."""
    return _Lives(steps).points()


class _Lives:
    """Steps in the order of their lives."""

    def __init__(self, steps: pa.Table) -> None:
        self.job, order = _in_order(steps)
        self.steps = steps.take(pa.array(order))
        self.rows = np.arange(len(order))
        first = np.ones(len(order), dtype=bool)
        first[1:] = self.job[1:] != self.job[:-1]
        self.first: Numbers = np.maximum.accumulate(
            np.where(first, self.rows, 0)
        )  # the row where the life begins
        self.event = _codes(self.steps.column("event"), _WORDS)
        self.before, self.next, self.after_next = self._row_at(-1), self._row_at(1), self._row_at(2)
        self.late_end = self._late_ends()

    # --- what a window would tell --------------------------------------------------------------------------------

    def _row_at(self, distance: int) -> Numbers:
        """The row that lies so far before or after within the same life."""
        rows = self.rows + distance
        inside = (rows >= 0) & (rows < len(self.rows))
        same = inside & (self.job[np.where(inside, rows, 0)] == self.job)
        return np.where(same, rows, _NONE)

    def _last_known(self, known: Flags) -> Numbers:
        """The latest row so far in which something is known."""
        latest: Numbers = np.maximum.accumulate(np.where(known, self.rows, _NONE))
        return np.where(latest >= self.first, latest, _NONE)

    def _so_far(self, counts: Numbers) -> Numbers:
        """The sum of `counts` from the beginning of each life."""
        total = np.cumsum(counts)
        return total - (total - counts)[self.first]

    def _event_at(self, rows: Numbers) -> Numbers:
        return np.where(rows == _NONE, _NONE, self.event[rows])

    # --- what is asked ---------------------------------------------------------------------------------------------

    def _running(self) -> Flags:
        """Rows after which the job runs."""
        active = _flags(pc.equal(self.steps.column("was_state"), "active"))
        running: Flags = (self.event == _CODE["active"]) | ((self.event == _CODE[STATE]) & active)
        return running

    def _late_ends(self) -> Flags:
        """Events that end a pickup which nobody saw, because its event was lost in a gap."""
        ends = np.isin(self.event, [_CODE[word] for word in ENDS])
        was_active = _flags(pc.equal(self.steps.column("prev"), "active"))
        ran_before = (self.before != _NONE) & self._running()[self.before]
        late: Flags = ends & was_active & ~ran_before
        return late

    def _attempts(self) -> Numbers:
        """Pickups since the job was last added: an id that is used again starts again."""
        counts = (self.event == _CODE["active"]) | self.late_end
        pickups = self._so_far(self._carried("was_attempt", counts))
        added = self._last_known(self.event == _CODE["added"])
        return pickups - np.where(added == _NONE, 0, pickups[added])

    def _carried(self, column: str, counts: Flags) -> Numbers:
        before = pc.fill_null(self.steps.column(column), 0).to_numpy()
        return np.where(self.event == _CODE[STATE], before, counts.astype(np.int64))

    def _moments(self, column: str, *words: str) -> Any:
        """When the last of some events was, or the time carried over from the last batch."""
        happens = np.isin(self.event, [_CODE[word] for word in words])
        times = pc.if_else(pa.array(happens), self.steps.column("ts"), self.steps.column(column))
        return _taken(times, self._last_known(_flags(pc.is_valid(times))))

    def points(self) -> pa.Table:
        following = self._event_at(self.next)
        ended = self._running() & np.isin(following, [_CODE[word] for word in ENDS])
        begins_in_the_middle = (self.before == _NONE) & ~np.isin(self.event, [_CODE["added"], _CODE[STATE]])
        kept = ended | self.late_end | (self.next == _NONE) | begins_in_the_middle
        return pa.table(self._columns(following)).filter(pa.array(kept))

    def _columns(self, following: Numbers) -> dict[str, Any]:
        steps = self.steps
        named = self._last_known(_flags(pc.is_valid(steps.column("step_name"))))
        stalls = self._so_far(self._carried("was_stalls", self.event == _CODE["stalled"]))
        same = {name: steps.column(name) for name in ("queue", "job_id", "ts", "seq", "event")}
        return same | {
            "was_state": steps.column("was_state"),
            "failed_reason": steps.column("failed_reason"),
            "name": _taken(steps.column("step_name"), named),
            "attempt": pa.array(self._attempts()),
            "stalls": pa.array(stalls),
            "added_at": self._moments("was_added_at", "added"),
            "ready_at": self._moments("was_ready_at", "waiting", "added"),
            "active_at": self._moments("was_active_at", "active"),
            "before_event": _taken(_WORDS, self._event_at(self.before)),
            "late_end": pa.array(self.late_end),
            "next_event": _taken(_WORDS, following),
            "next_ts": _taken(steps.column("ts"), self.next),
            "next_failed_reason": _taken(steps.column("failed_reason"), self.next),
            "after_next": _taken(_WORDS, self._event_at(self.after_next)),
        }


def _in_order(steps: pa.Table) -> tuple[Numbers, Numbers]:
    """Which job each sorted row belongs to, and where that row was before."""
    queues, ids = (steps.column(name).combine_chunks().dictionary_encode() for name in ("queue", "job_id"))
    job = _numbers(queues.indices) * len(ids.dictionary) + _numbers(ids.indices)
    # The state that a job was left in comes before an event of the same moment.
    is_event = _codes(steps.column("event"), _WORDS) != _CODE[STATE]
    place = _numbers(steps.column("ts").cast(pa.int64())), _numbers(steps.column("seq"))
    order = np.lexsort((is_event, place[1], place[0], job))
    return job[order], order


def _numbers(column: Any) -> Numbers:
    return np.asarray(column, dtype=np.int64)


def _codes(column: Any, words: pa.Array) -> Numbers:
    return _numbers(pc.fill_null(pc.index_in(column, value_set=words), _NONE))


def _flags(column: Any) -> Flags:
    return np.asarray(pc.fill_null(column, False), dtype=bool)


def _taken(column: Any, rows: Numbers) -> Any:
    return column.take(pa.array(rows, mask=rows == _NONE))
