"""How far each table has processed its input tables, and whether these still have those rows.

Guarantee: a table whose last commits were removed, or that was replaced by an old copy, is noticed before anything is
read or written, also when it has grown again meanwhile: a mark holds the number of a commit and its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from toril.errors import TableMissing, TableRolledBack
from toril.lake.marked_log import MarkedLake, MarkedLog
from toril.spark.pipeline.options import FILLS

HASHES: Final = (
    "toril.hashes"  # of bronze/jobs and bronze/logs: the version of bronze/events that they have reached
)
GAPS: Final = "toril.gaps"  # of bronze/jobs: the last version of bronze/events that has a gap
RECONCILED: Final = (
    "toril.reconcile"  # of bronze/jobs: the last one of these after which whole queues were read
)
REFINED: Final = "toril.refine"  # of silver: the version of bronze/events
REFINED_HASHES: Final = "toril.refine.hashes"  # of silver: the version of bronze/jobs
FILLED: Final = (
    "toril.refine.fill"  # of silver/jobs: which attempts were completed from hashes, a place in FILLS
)
# Of gold/alerts: the version of silver/attempts whose figures it was computed from.
ALERTED: Final = "toril.gold.alerts"
FIGURED: Final = "toril.gold"  # of gold: the version of what the figures are made of

_SILVER: Final = ("silver/attempts", "silver/gaps", "silver/jobs")
_FIGURES: Final = ("gold/queue_minute", "gold/queue_hour", "gold/errors")
# What is made of what, and under which mark.
LINKS: Final = (
    *(("bronze/events", name, REFINED) for name in _SILVER),
    *(("bronze/events", name, HASHES) for name in ("bronze/jobs", "bronze/logs")),
    *(("bronze/jobs", name, REFINED_HASHES) for name in _SILVER),
    *(("silver/attempts", name, FIGURED) for name in _FIGURES),
    ("bronze/worker_reports", "gold/workers", FIGURED),
)


def reached(log: MarkedLog, application: str, version: int) -> dict[str, int]:
    """The marks of whoever has come to a version of a table."""
    at = log.commit_time(version)
    return {application: version, f"{application}.time": -1 if at is None else at}


def last_filled(lake: MarkedLake) -> str | None:
    """Which attempts of silver were completed from hashes when it was last refined."""
    jobs = _opened(lake, "silver/jobs")
    place = -1 if jobs is None else jobs.committed(FILLED)
    return FILLS[place] if place >= 0 else None


def check_layers(lake: MarkedLake) -> None:
    """Raises `TableRolledBack` for the first table that holds less than what was made of it."""
    for problem in rolled_back(lake):
        raise problem


def rolled_back(lake: MarkedLake) -> Iterator[TableRolledBack]:
    """All tables that hold less than what was made of them."""
    for source, made, mark in LINKS:
        target = _opened(lake, made)
        if target is not None and target.committed(mark) > 0:
            yield from _compare_with_source(lake, source, target, mark)
    jobs = _opened(lake, "silver/jobs")
    if jobs is not None:  # which is always committed last
        yield from _check_silver_versions(lake, jobs)


def _compare_with_source(
    lake: MarkedLake, source: str, target: MarkedLog, mark: str
) -> Iterator[TableRolledBack]:
    version, at = target.committed(mark), target.committed(f"{mark}.time")
    made = f"{target.name} was made of its version {version}"
    log = _opened(lake, source)
    if log is None or log.version < version:
        found = "it is gone" if log is None else f"it is at version {log.version}"
        yield TableRolledBack(source, found, made, lake.url)
    elif at > 0 and log.commit_time(version) not in (None, at):
        yield TableRolledBack(source, f"its version {version} is another one now", made, lake.url)


def _check_silver_versions(lake: MarkedLake, jobs: MarkedLog) -> Iterator[TableRolledBack]:
    for name in _SILVER[:2]:
        log, reached_by_jobs = _opened(lake, name), jobs.committed(REFINED)
        version = -1 if log is None else log.committed(REFINED)
        if version < reached_by_jobs:
            found = "it is gone" if log is None else f"it has version {max(version, 0)} of bronze/events"
            yield TableRolledBack(name, found, f"silver/jobs has version {reached_by_jobs}", lake.url)


def _opened(lake: MarkedLake, name: str) -> MarkedLog | None:
    try:
        return lake.table(name)
    except TableMissing:
        return None
