"""Converts turning points to rows of silver/attempts and silver/jobs, in columns.

Guarantee: the tables have exactly the columns and types of the lake; every attempt that ended is one row. A pickup in
which no handler ran is no attempt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from toril.lake.tables import ATTEMPTS, SILVER_JOBS
from toril.spark.transforms.step_columns import DONE, HASH, STATE, TALLIES

_DONE: Final = pa.array(DONE)
_FINAL: Final = pa.array(["completed", "failed"])
_BEGINNINGS: Final = pa.array(["added", STATE, HASH])
_TIME: Final = pa.timestamp("us", tz="UTC")
# Why a worker fails a job that it has taken, without running it: the sweep or a child of the job has decided before.
# A child is named by its key, `prefix:queue:id`; "child process failed" is the error of a handler.
NO_HANDLER_RAN: Final = r"^(job (stalled|started) more than allowable limit|child \S+:\S.*:\S.* failed)$"

Filler = Callable[[pa.Table, pa.Table], pa.Table]  # completes attempts; it is given their turning points, too


def attempts_table(points: pa.Table, fill: Filler | None = None) -> pa.Table:
    """The attempts that ended, as rows of silver/attempts."""
    ended = points.filter(_is_end_of_attempt(points))
    from_events = _attempts_from_events(ended)
    from_hashes = [
        _attempt_from_hash(row) for row in points.filter(pc.equal(points["event"], HASH)).to_pylist()
    ]
    by_hash = pa.Table.from_pylist([row for row in from_hashes if row], schema=ATTEMPTS.schema)
    return pa.concat_tables([fill(from_events, ended) if fill else from_events, by_hash])


def _is_end_of_attempt(points: pa.Table) -> pa.ChunkedArray:
    unrun = pc.match_substring_regex(pc.fill_null(points["end_reason"], ""), NO_HANDLER_RAN)
    skipped = pc.and_(_equals(points["end_event"], "failed"), unrun)
    return pc.and_(pc.is_valid(points["end_event"]), pc.invert(skipped))


def _attempts_from_events(ended: pa.Table) -> pa.Table:
    late, ended_at = ended["late_end"], ended["end_ts"]
    ready, active = (_unless(late, ended[name]) for name in ("ready_at", "active_at"))
    columns = {
        **{name: ended[name] for name in ("queue", "job_id", "name", "attempt", "added_at")},
        "ready_at": ready,
        "active_at": active,
        "ended_at": ended_at,
        "outcome": _outcome(ended["end_event"], ended["end_after"]),
        "wait_ms": _ms_between(ready, active),
        "run_ms": _ms_between(active, ended_at),
        "error": _unless(pc.not_equal(ended["end_event"], "failed"), ended["end_reason"]),
        "worker": pa.nulls(len(ended), pa.string()),
        "source": pa.repeat("events", len(ended)),
        "day": ended_at.cast(pa.date32()),
    }
    return pa.table(columns).cast(ATTEMPTS.schema)


def _attempt_from_hash(point: Mapping[str, Any]) -> dict[str, Any] | None:
    """The last attempt of a job that ended in a gap, from its hash."""
    hash_ = json.loads(point["hash"])
    failed, began, ended = point["was_state"] == "failed", point["active_at"], point["was_finished_at"]
    if failed and pc.match_substring_regex(pa.scalar(point["failed_reason"] or ""), NO_HANDLER_RAN).as_py():
        return None
    first = point["attempt"] <= 1 and point["added_at"] is not None
    ready = point["added_at"] + timedelta(milliseconds=hash_.get("delay") or 0) if first else None
    return {
        **{name: point[name] for name in ("queue", "job_id", "name", "added_at")},
        "attempt": max(point["attempt"], 1),
        "ready_at": ready,
        "active_at": began,
        "ended_at": ended,
        "outcome": point["was_state"],
        "wait_ms": None if ready is None or began is None else max(0, _ms(ready, began)),
        "run_ms": None if began is None else _ms(began, ended),
        "error": point["failed_reason"] if failed else None,
        "worker": hash_.get("worker"),
        "source": "hash",
        "day": ended.date(),
    }


def _ms(start: datetime, end: datetime) -> int:
    return (end - start) // timedelta(milliseconds=1)


def _equals(column: pa.ChunkedArray, word: str) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(column, word), False)


def _unless(flag: pa.ChunkedArray, column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(flag, pa.scalar(None, column.type), column)


def _outcome(end: pa.ChunkedArray, then: pa.ChunkedArray) -> pa.ChunkedArray:
    """A sweep writes `waiting` and then `stalled` for a job whose worker died; any other return is a retry."""
    swept = pc.or_(pc.equal(end, "stalled"), pc.and_(pc.equal(end, "waiting"), _equals(then, "stalled")))
    final = pc.is_in(end, value_set=_FINAL)
    suspended = pc.equal(end, "waiting-children")
    return pc.if_else(final, end, pc.if_else(swept, "stalled", pc.if_else(suspended, "suspended", "retried")))


def _ms_between(start: pa.ChunkedArray, end: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.subtract(
        *(one.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()) for one in (end, start))
    )


def jobs_table(points: pa.Table, *, changed: bool = False) -> pa.Table:
    """The last state of each job, as rows of silver/jobs. `changed`: without jobs that were done before."""
    last = points.filter(pc.is_null(points["next_event"]))
    state = _state(last)
    done = pc.is_in(state, value_set=_DONE)
    untouched = pc.and_(pc.and_(done, changed), pc.equal(last["event"], STATE))
    columns = {
        **{name: last[name] for name in ("queue", "job_id", "name")},
        "state": state,
        **{name: last[name] for name in ("attempt", "stalls")},
        **{name: last[name] for name in ("added_at", "ready_at", "active_at")},
        "finished_at": _unless(pc.invert(done), pc.coalesce(last["was_finished_at"], last["ts"])),
        "updated_at": last["ts"].cast(_TIME),
        "updated_seq": last["seq"],
        "error": _unless(pc.invert(_has_reason(last)), last["failed_reason"]),
        "phase": pc.if_else(done, "done", "open"),
        **{name: last[name] for name in TALLIES},
    }
    return pa.table(columns).cast(SILVER_JOBS.schema).filter(pc.invert(untouched))


def _has_reason(last: pa.Table) -> pa.ChunkedArray:
    """The hash of a completed job may still hold the reason of an attempt before."""
    failed = pc.or_(pc.equal(last["event"], "failed"), _equals(last["was_state"], "failed"))
    return pc.or_(failed, pc.equal(last["event"], STATE))


def _state(last: pa.Table) -> pa.ChunkedArray:
    waits = pc.is_in(last["event"], value_set=pa.array(["added", "stalled"]))
    carried = pc.is_in(last["event"], value_set=pa.array([STATE, HASH]))
    return pc.if_else(carried, last["was_state"], pc.if_else(waits, "waiting", last["event"]))


def lacks_start(points: pa.Table) -> pa.ChunkedArray:
    """Whether a row is the first of a timeline that lacks its start."""
    known = pc.is_in(points["event"], value_set=_BEGINNINGS)
    return pc.and_(pc.is_null(points["before_event"]), pc.invert(known))
