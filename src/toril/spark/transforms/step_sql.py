"""The steps of job timelines in SQL: events, the states that the last batch left, and hashes.

Guarantee: Spark and DuckDB give the same rows for it. `{events}`, `{open_jobs}`, `{done_jobs}`, `{hashes}` and
`{named}` stand for tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from toril.spark.transforms.dialect import Dialect
from toril.spark.transforms.step_columns import FILL, HASH, STATE, STEP, TALLIES, TIMELINE_EVENTS

AFTER_GAP: Final = "first_event_id is null and last_event_id is not null"
_NAMES: Final = ", ".join(f"'{name}'" for name in TIMELINE_EVENTS)
IS_STEP: Final = f"job_id is not null and event in ({_NAMES})"
CARRIED: Final = ("state", "attempt", "stalls", *TALLIES, "added_at", "ready_at", "active_at", "finished_at")
# How a value gets the type of its column; a moment has it already.
_TYPED: Final = {"string": "cast({} as string)", "int64": "cast({} as bigint)", "timestamp[us, tz=UTC]": "{}"}
_NO_MOMENT: Final = "timestamp_millis(cast(null as bigint))"


def steps_sql(dialect: Dialect, *, with_hashes: bool, carried: Collection[str] = CARRIED) -> str:
    """Steps of all events, all open jobs and all hashes."""
    parts = [_events("{events}"), _stored_states("{open_jobs}", carried)]
    return " union all ".join([*parts, _read("{hashes}", dialect)] if with_hashes else parts)


def steps_after_gap_sql(dialect: Dialect) -> str:
    """The same, with the states of jobs that were read after a gap and have ended before."""
    same = "one.queue = done.queue and one.job_id = done.job_id"
    done = (
        f"(select * from ({latest_sql('{done_jobs}')}) done"
        f" where exists (select 1 from (select * from {{hashes}} where {AFTER_GAP}) one where {same})"
        f" and not exists (select 1 from {{open_jobs}} one where {same}))"
    )
    parts = [
        _stored_states("{open_jobs}", CARRIED),
        _stored_states(done, CARRIED),
        _read("{hashes}", dialect),
    ]
    return " union all ".join([_events("{events}"), *parts])


def steps_of_named_sql(dialect: Dialect, *, with_hashes: bool) -> str:
    """Steps of some jobs that have ended before: they go on from their last state."""
    parts = [
        _events(_named("{events}")),
        _stored_states(latest_sql(_named("{done_jobs}"), within=True), CARRIED),
    ]
    return " union all ".join([*parts, _read(_named("{hashes}"), dialect)] if with_hashes else parts)


def _named(table: str) -> str:
    same = "named.queue = one.queue and named.job_id = one.job_id"
    return f"(select one.* from {table} one where exists (select 1 from {{named}} named where {same}))"


def latest_sql(jobs: str, *, within: bool = False) -> str:
    """The last row of each job."""
    newest = "partition by queue, job_id order by updated_at desc, updated_seq desc"
    sql = f"select * from (select *, row_number() over ({newest}) as age from {jobs} jobs) aged where age = 1"
    return f"({sql})" if within else sql


def _step(rows: str, columns: Mapping[str, str], where: str = "true") -> str:
    """Rows with the columns of a step; those that are not given are empty."""
    chosen = (f"{_typed(str(field.type), columns.get(field.name))} as {field.name}" for field in STEP)
    return f"select {', '.join(chosen)} from {rows} step_rows where {where}"


def _typed(kind: str, value: str | None) -> str:
    is_moment = kind.startswith("timestamp")
    return _TYPED[kind].format(value or (_NO_MOMENT if is_moment else "null"))


def _events(rows: str) -> str:
    same = ("queue", "job_id", "ts", "seq", "event", "prev", "failed_reason")
    return _step(rows, {**{name: name for name in same}, "step_name": "name"}, IS_STEP)


def _stored_states(rows: str, columns: Collection[str]) -> str:
    named = {
        "queue": "queue",
        "job_id": "job_id",
        "ts": "updated_at",
        "seq": "updated_seq",
        "event": f"'{STATE}'",
        "step_name": "name",
        "failed_reason": "error",
    }
    return _step(rows, {**named, **{f"was_{name}": name for name in columns}})


def _read(rows: str, dialect: Dialect) -> str:
    """Hashes at the place of the last event that they were read with."""
    columns = {
        "queue": "queue",
        "job_id": "job_id",
        "step_name": "name",
        "failed_reason": "failed_reason",
        "ts": f"timestamp_millis({_part('last_event_id', 1)})",
        "seq": _part("last_event_id", 2),
        "event": f"case when first_event_id is null then '{HASH}' else '{FILL}' end",
        "was_state": "state",
        "was_attempt": "attempts_started",
        "was_stalls": "stalled",
        "was_added_at": "added_at",
        "was_active_at": "processed_at",
        "was_finished_at": "finished_at",
        "since_ts": f"timestamp_millis({_part('first_event_id', 1)})",
        "since_seq": _part("first_event_id", 2),
        "hash": _facts(dialect),
    }
    ended = "state in ('completed', 'failed') and finished_at is not null"
    return _step(rows, columns, f"last_event_id is not null and (first_event_id is not null or ({ended}))")


def _part(event_id: str, number: int) -> str:
    return f"cast(split_part({event_id}, '-', {number}) as bigint)"


def _facts(dialect: Dialect) -> str:
    """What a hash says about attempts, as JSON; nothing else of it need travel."""
    has_failed = "(failed_reason is not null or stacktrace is not null)"
    # The option is a number of milliseconds, or says it as its delay.
    backoff = "coalesce(get_json_object(opts, '$.backoff.delay'), get_json_object(opts, '$.backoff'))"
    limit = "get_json_object(opts, '$.stackTraceLimit')"
    facts = {
        "state": "state",
        "worker": "worker",
        "started": "attempts_started",
        "made": "attempts_made",
        "stalled": "stalled",
        "delay": "delay_ms",
        "processed": "unix_millis(processed_at)",
        "finished": "unix_millis(finished_at)",
        "reason": "failed_reason",
        "traces": "stacktrace",
        "trace_limit": f"case when {has_failed} then try_cast({limit} as bigint) end",
        "backoff": f"case when {has_failed} then coalesce(try_cast({backoff} as double) > 0, false) else false end",
    }
    return dialect.json_object.format(", ".join(f"'{name}', {value}" for name, value in facts.items()))
