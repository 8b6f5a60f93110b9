"""What turning points tell: rows of silver/attempts and silver/jobs, in columns.

Guarantee: the tables have exactly the columns and types of the lake; every attempt that ended is told once.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from toril.lake.tables import ATTEMPTS, SILVER_JOBS
from toril.spark.transforms.job_timeline import ENDS, STATE

_DONE: Final = pa.array(["completed", "failed", "removed"])
_FINAL: Final = pa.array(["completed", "failed"])
_BEGINNINGS: Final = pa.array(["added", STATE])
_TIME: Final = pa.timestamp("us", tz="UTC")


def attempts_table(points: pa.Table) -> pa.Table:
    """The attempts that ended, as rows of silver/attempts."""
    ended = points.filter(_is_end_of_attempt(points))
    late = ended["late_end"]
    end = pc.if_else(late, ended["event"], ended["next_event"])
    then = pc.if_else(late, ended["next_event"], ended["after_next"])
    ended_at = pc.if_else(late, ended["ts"], ended["next_ts"]).cast(_TIME)
    reason = pc.if_else(late, ended["failed_reason"], ended["next_failed_reason"])
    ready, active = (_unless(late, ended[name]).cast(_TIME) for name in ("ready_at", "active_at"))
    told = {
        **{name: ended[name] for name in ("queue", "job_id", "name", "attempt")},
        "added_at": ended["added_at"].cast(_TIME),
        "ready_at": ready,
        "active_at": active,
        "ended_at": ended_at,
        "outcome": _outcome(end, then),
        "wait_ms": _ms_between(ready, active),
        "run_ms": _ms_between(active, ended_at),
        "error": pc.if_else(pc.equal(end, "failed"), reason, pa.scalar(None, pa.string())),
        "worker": pa.nulls(len(ended), pa.string()),
        "source": pa.repeat("events", len(ended)),
        "day": ended_at.cast(pa.date32()),
    }
    return pa.table(told).cast(ATTEMPTS.schema)


def _is_end_of_attempt(points: pa.Table) -> Any:
    carried = pc.and_(pc.equal(points["event"], STATE), _says(points["was_state"], "active"))
    running = pc.or_(pc.equal(points["event"], "active"), carried)
    seen = pc.and_(running, pc.is_in(points["next_event"], value_set=pa.array(ENDS)))
    return pc.or_(seen, points["late_end"])


def _says(column: Any, word: str) -> Any:
    return pc.fill_null(pc.equal(column, word), False)


def _unless(flag: Any, column: Any) -> Any:
    return pc.if_else(flag, pa.scalar(None, column.type), column)


def _outcome(end: Any, then: Any) -> Any:
    """A sweep says `waiting` and then `stalled` of a job whose worker died; any other way back is a retry."""
    swept = pc.or_(pc.equal(end, "stalled"), pc.and_(pc.equal(end, "waiting"), _says(then, "stalled")))
    final = pc.is_in(end, value_set=_FINAL)
    suspended = pc.equal(end, "waiting-children")
    return pc.if_else(final, end, pc.if_else(swept, "stalled", pc.if_else(suspended, "suspended", "retried")))


def _ms_between(start: Any, end: Any) -> Any:
    return pc.subtract(
        *(one.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()) for one in (end, start))
    )


def jobs_table(points: pa.Table) -> pa.Table:
    """The last word on each job, as rows of silver/jobs."""
    last = points.filter(pc.is_null(points["next_event"]))
    state = _state(last)
    done = pc.is_in(state, value_set=_DONE)
    told_why = pc.is_in(last["event"], value_set=pa.array(["failed", STATE]))
    told = {
        **{name: last[name] for name in ("queue", "job_id", "name")},
        "state": state,
        **{name: last[name] for name in ("attempt", "stalls")},
        **{name: last[name].cast(_TIME) for name in ("added_at", "ready_at", "active_at")},
        "finished_at": _unless(pc.invert(done), last["ts"]).cast(_TIME),
        "updated_at": last["ts"].cast(_TIME),
        "updated_seq": last["seq"],
        "error": _unless(pc.invert(told_why), last["failed_reason"]),
        "phase": pc.if_else(done, "done", "open"),
    }
    return pa.table(told).cast(SILVER_JOBS.schema)


def _state(last: pa.Table) -> Any:
    waits = pc.is_in(last["event"], value_set=pa.array(["added", "stalled"]))
    carried = pc.equal(last["event"], STATE)
    return pc.if_else(carried, last["was_state"], pc.if_else(waits, "waiting", last["event"]))


def begins_in_the_middle(points: pa.Table) -> Any:
    """Whether a row is the first of a life that has no beginning."""
    known = pc.is_in(points["event"], value_set=_BEGINNINGS)
    return pc.and_(pc.is_null(points["before_event"]), pc.invert(known))
