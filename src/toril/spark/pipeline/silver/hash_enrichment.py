"""Completes attempts from job hashes: their worker, and the error of those that were retried.

Guarantee: a hash adds what events do not contain and never changes what they do. What is uncertain stays
empty: a job without a hash, a worker before the last one, an error that cannot be assigned to one attempt.

A hash holds the traces of failed attempts in their order, and counts: attempts that were started, those that were made
(which ended, completed ones included) and those that stalled. Which attempt a trace belongs to follows from the counts
together with the events: see `_number`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from toril.spark.pipeline.silver.stack_traces import Sample, message_of
from toril.spark.transforms.step_columns import TALLIES

Facts: TypeAlias = Mapping[str, Any]  # the columns of _FACTS in one row
_FACTS: Final = (
    *("attempt", "end_event", "end_ts", "late_end", "hash"),
    *("known_ts", "known_event", "known_attempt"),
    *(f"{when}_{name}" for when in ("end", "known") for name in TALLIES),
)


class LastPickup(msgspec.Struct, frozen=True):
    """What the hash of every job has."""

    worker: str | None = None
    started: int | None = None


class Hash(msgspec.Struct, frozen=True):
    """What a job's hash has about its attempts; times in milliseconds."""

    state: str | None = None
    worker: str | None = None
    started: int | None = None
    made: int | None = None
    stalled: int | None = None
    processed: int | None = None
    finished: int | None = None
    reason: str | None = None
    traces: str | None = None
    trace_limit: int | None = None
    backoff: bool = False  # whether it waits before it is tried again


@dataclass(frozen=True, slots=True)
class HashEnricher:
    """Fills `worker` and `error` of attempts; runs on executors."""

    everything: bool = True  # False: only attempts that did not complete

    def __call__(self, attempts: pa.Table, points: pa.Table) -> pa.Table:
        """`points` are the turning points of the attempts, row by row."""
        concerned = pc.is_valid(points["hash"])
        if not self.everything:
            concerned = pc.and_(concerned, pc.not_equal(attempts["outcome"], "completed"))
        filled = _with_workers(attempts, points, concerned)
        filled = _with_errors(filled, points, pc.and_(concerned, pc.equal(attempts["outcome"], "retried")))
        return _with_start_times(filled, points, pc.and_(concerned, points["late_end"]))


def _with_workers(attempts: pa.Table, points: pa.Table, concerned: pa.ChunkedArray) -> pa.Table:
    """Fills the workers. It runs for every job, so it reads few columns."""
    found = {}
    numbers, hashes = (points[name].filter(concerned).to_pylist() for name in ("attempt", "hash"))
    rows = pc.indices_nonzero(concerned).to_pylist()
    for row, number, raw in zip(rows, numbers, hashes, strict=True):
        known = msgspec.json.decode(raw, type=LastPickup)
        if known.started == number:  # the hash names the worker of the last pickup only
            found[row] = known.worker
    return _with(attempts, "worker", found)


def _with_errors(attempts: pa.Table, points: pa.Table, retried: pa.ChunkedArray) -> pa.Table:
    return _with(
        attempts,
        "error",
        {row: _error(facts, known) for row, facts, known in _rows_with_hashes(points, retried)},
    )


def _with_start_times(attempts: pa.Table, points: pa.Table, late: pa.ChunkedArray) -> pa.Table:
    """Pickups that were lost in a gap: the hash still has the time of the last one."""
    found = {
        row: _start_time(known.processed, facts["end_ts"])
        for row, facts, known in _rows_with_hashes(points, late)
        if known.started == facts["attempt"] and known.processed is not None
    }
    attempts = _with(attempts, "active_at", {row: began for row, (began, _) in found.items()})
    return _with(attempts, "run_ms", {row: took for row, (_, took) in found.items()})


def _rows_with_hashes(points: pa.Table, wanted: pa.ChunkedArray) -> Iterator[tuple[int, Facts, Hash]]:
    """Yields rows with the facts from events and from the hash."""
    facts = points.select(_FACTS).filter(wanted).to_pylist()
    for row, one in zip(pc.indices_nonzero(wanted).to_pylist(), facts, strict=True):
        yield row, one, msgspec.json.decode(one["hash"], type=Hash)


def _with(attempts: pa.Table, name: str, found: Mapping[int, object]) -> pa.Table:
    """Returns the table with some values of a column replaced."""
    if not found:
        return attempts
    values = attempts[name].to_pylist()
    for row, value in found.items():
        values[row] = value
    field = attempts.schema.field(name)
    return attempts.set_column(attempts.schema.get_field_index(name), field, pa.array(values, field.type))


def _start_time(processed: int, ended_at: datetime) -> tuple[datetime, int]:
    return datetime.fromtimestamp(processed / 1000, UTC), max(0, int(ended_at.timestamp() * 1000) - processed)


def _error(facts: Facts, known: Hash) -> str | None:
    """The error of an attempt that was retried."""
    number, traces = _number(facts, known), _traces(known.traces)
    if number is None:
        return None
    for failures in _failures(facts, known):
        if len(traces) == min(failures, failures if known.trace_limit is None else known.trace_limit):
            place = len(traces) - failures + number - 1  # old traces fall out at the front
            if number == failures and known.reason is not None:
                return known.reason
            return _message(traces, place, known.reason) if 0 <= place < len(traces) else None
    # Something was thrown that has no trace: only the last reason has a place.
    return known.reason if _failures(facts, known) == [number] else None


def _message(traces: Sequence[str], place: int, reason: str | None) -> str | None:
    """The message in a trace; the reason is that of the last one."""
    return message_of(traces[place], Sample.of(traces[-1], reason))


def _number(facts: Facts, known: Hash) -> int | None:
    """Which failure of its job an attempt was, counted from one; None when it was none, or when it is uncertain.

    Not every attempt that goes back to wait or is delayed has failed: a worker that stops gives its jobs back, and a
    handler may postpone its job. Those are started and not made. A job with a backoff is delayed when it fails: where
    as many attempts were not made as went back to wait, these are the ones.
    """
    if not _is_whole(facts, known):
        return None
    unmade = _unmade(known) - facts["known_suspensions"]
    if not unmade:
        return int(facts["end_returns"] + facts["end_delays"] + facts["end_failures"])
    given_back = (
        known.backoff and unmade == facts["known_returns"] and known.started == facts["known_attempt"]
    )
    if given_back and facts["end_event"] == "delayed":
        return int(facts["end_delays"] + facts["end_failures"])
    return None


def _unmade(known: Hash) -> int:
    """Pickups that count as no attempt: given back, postponed, or waiting for children; not the one at work."""
    at_work = 1 if known.state == "active" else 0
    return (known.started or 0) - (known.made or 0) - (known.stalled or 0) - at_work


def _is_whole(facts: Facts, known: Hash) -> bool:
    """Whether the events show all pickups that the hash counts, apart from those that came later."""
    started, seen = known.started or 0, facts["known_attempt"]
    if started == seen:
        return True
    return started > seen and (known.processed or 0) > int(facts["known_ts"].timestamp() * 1000)


def _failures(facts: Facts, known: Hash) -> list[int]:
    """How many attempts had failed when the hash was read; two numbers if it is uncertain whether the last one did."""
    failures = (known.made or 0) - facts["known_completions"]
    ended_unseen = known.finished is not None and facts["known_event"] not in ("completed", "failed")
    return [failures, failures - 1] if ended_unseen else [failures]


def _traces(raw: str | None) -> list[str]:
    try:
        found = msgspec.json.decode(raw) if raw else []
    except msgspec.DecodeError:
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
