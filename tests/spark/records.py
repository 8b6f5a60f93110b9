"""What handlers themselves write down about each attempt, and how silver is compared with it, attempt by attempt.

Nothing here looks at events, hashes or counters: a handler knows which worker it runs in, when it began, how it ended
and what it raised.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from toril.spark.pipeline import Pipeline

_SLACK = 0.02  # seconds: clocks tell milliseconds, and the server's and ours are read one after the other


@dataclass(frozen=True, slots=True)
class Record:
    """One attempt, as its handler saw it."""

    job_id: str
    outcome: str  # completed, failed, retried; stalled: the handler began and its worker died
    error: str | None
    worker: str
    began: float
    ended: float | None = None


@dataclass
class Records:
    """All attempts of a workload."""

    all: list[Record] = field(default_factory=list)

    def note(self, *words: Any, **more: Any) -> None:
        self.all.append(Record(*words, **more))

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(one.outcome for one in self.all)

    @property
    def attempts(self) -> Counter[str]:
        return Counter(one.job_id for one in self.all)

    def by_job(self) -> dict[str, list[Record]]:
        found = defaultdict(list)
        for one in sorted(self.all, key=lambda one: one.began):
            found[one.job_id].append(one)
        return found


def rows_of(pipeline: Pipeline, queue: str) -> dict[str, list[dict[str, Any]]]:
    """Attempts in silver by job, in the order of their beginnings."""
    rows = pipeline.query(
        f"select * from silver.attempts where queue = '{queue}' order by job_id, active_at, ended_at, attempt"
    ).to_pylist()
    found = defaultdict(list)
    for row in rows:
        found[row["job_id"]].append(row)
    return found


def differences(
    records: Records, rows: dict[str, list[dict[str, Any]]], *, unsure: Collection[tuple[str, int]] = ()
) -> list[str]:
    """Where silver says something else than the handlers.

    A worker that it does not know is no difference, nor is an error of an attempt that is `unsure` (job and place).
    """
    told = records.by_job()
    found = [f"{job}: no handler ran it" for job in rows.keys() - told.keys()]
    for job, attempts in told.items():
        seen = rows.get(job, [])
        if len(seen) != len(attempts):
            found.append(f"{job}: {[_short(row) for row in seen]}, not {attempts}")
        else:
            pairs = zip(attempts, seen, strict=True)
            found += [_difference(*pair, unsure=(job, at) in unsure) for at, pair in enumerate(pairs)]
    return [one for one in found if one]


def _difference(record: Record, row: dict[str, Any], *, unsure: bool) -> str:
    same = record.outcome == row["outcome"]
    same &= row["error"] == record.error or (unsure and row["error"] is None)
    same &= row["worker"] in (None, record.worker)
    same &= _seconds(row["active_at"]) <= record.began + _SLACK
    same &= record.ended is None or record.ended <= _seconds(row["ended_at"]) + _SLACK
    return "" if same else f"{_short(row)}, not {record}"


def workers_missing(records: Records, rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Jobs of whose last attempt silver does not know the worker."""
    return [job for job in records.attempts if rows[job][-1]["worker"] is None]


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("job_id", "attempt", "outcome", "error", "worker", "active_at")}


def _seconds(moment: datetime) -> float:
    return moment.timestamp()


def whole_tables(pipeline: Pipeline, names: Iterable[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of some tables, in an order that does not depend on files."""
    found = {}
    for name in names:
        rows = pipeline.lake.read(name).to_pylist()
        found[name] = sorted((tuple(row.items()) for row in rows), key=repr)
    return found
