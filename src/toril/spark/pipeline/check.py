"""Check: whether the tables of a lake agree with Redis, with each other and with their files.

Guarantee: nothing is written; every finding has a remedy; a lake that a run has just brought up to date has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Literal

from deltalake.exceptions import DeltaError
from pyarrow import fs

from toril.commands.streams import StreamState
from toril.errors import LakeError, RedisError
from toril.lake import TABLES, Lake, TableMissing
from toril.lake.delta_table import LakeTable
from toril.lake.storage import file_system
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.bronze.stream_positions import TABLE as EVENTS
from toril.spark.pipeline.bronze.stream_positions import committed_position
from toril.spark.pipeline.files.lineage import ALERTED, FIGURED, LINKS, rolled_back
from toril.spark.pipeline.files.retention import first_day_kept
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.positions import ORIGIN, Position, id_parts, read_stream_states
from toril.transport import BlockingTransport

Level = Literal["fault", "behind"]
Connect = Callable[[], BlockingTransport]
_RUN: Final = "`toril pipeline run` continues from what is there"
_REPLAY: Final = "`toril pipeline replay` builds silver and gold anew from bronze"
_RESTORE: Final = (
    "restore the table from a copy; without one, remove its folder, then `toril pipeline run` and `replay`"
)
# Every step of a pipeline commits under an application of this name; compaction and new columns bring no rows.
_OWN: Final = "toril."
_FIGURES: Final = {"gold/queue_minute": "attempts", "gold/queue_hour": "attempts", "gold/errors": '"count"'}
_COUNTED: Final = "select queue, sum({column})::bigint as n from {table} where day >= $since group by 1"
_ATTEMPTS: Final = "select queue, count(*) as n from silver.attempts where day >= $since{} group by 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFinding:
    """One thing that does not agree, and what to do."""

    level: Level  # behind: a run will catch up by itself
    check: str  # log | files | rows | layers | figures | positions | gaps
    subject: str  # a table, or a queue
    problem: str
    remedy: str


def examine(lake: Lake, directory: QueueSelection, connect: Connect) -> list[LakeFinding]:
    """All findings, those about files first: what depends on a damaged table is not examined."""
    found = [one for name in TABLES for one in _table_findings(lake, name)]
    if any(one.check in ("log", "files") for one in found):
        return found
    found += [*_layers(lake), *_figures(lake), *_gaps(lake)]
    try:
        found += _positions(lake, directory, connect)
    except RedisError as error:
        remedy = "check the address and the server, then check again"
        found.append(_fault("positions", "Redis", f"positions are not compared: {error}", remedy))
    return found


def _fault(check: str, subject: str, problem: str, remedy: str, *, level: Level = "fault") -> LakeFinding:
    return LakeFinding(level=level, check=check, subject=subject, problem=problem, remedy=remedy)


# --- one table -----------------------------------------------------------------------------------------------


def _table_findings(lake: Lake, name: str) -> Iterator[LakeFinding]:
    numbers = _commits(lake, name)
    missing = sorted(set(range(numbers[0], numbers[-1])) - set(numbers)) if numbers else []
    if missing:
        yield _fault("log", name, f"commits {_first_five(missing)} are missing in its log", _RESTORE)
        return
    try:
        log = lake.table(name)
        yield from _files(lake, log)
        yield from _foreign_commits(log, numbers)
    except TableMissing:
        return
    except (DeltaError, LakeError, OSError) as error:
        yield _fault("log", name, f"it cannot be opened: {error}", _RESTORE)


def _commits(lake: Lake, name: str) -> list[int]:
    """The numbers of the commits whose log entries are there."""
    system, root = file_system(lake.location(name), lake.storage_options)
    found = system.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True))
    names = [one.base_name.removesuffix(".json") for one in found if one.base_name.endswith(".json")]
    return sorted(int(one) for one in names if one.isdecimal())


def _files(lake: Lake, log: LakeTable) -> Iterator[LakeFinding]:
    files = log.files()
    system, root = file_system(lake.location(log.spec.name), lake.storage_options)
    infos = system.get_file_info([f"{root}/{file.path}" for file in files]) if files else []
    pairs = list(zip(files, infos, strict=True))
    missing = [file.path for file, info in pairs if not info.is_file]
    cut = [file.path for file, info in pairs if info.is_file and info.size != file.size]
    remedy = _REPLAY if log.spec.layer != "bronze" else _RESTORE
    if missing:
        yield _fault("files", log.spec.name, f"files are missing: {_first_five(missing)}", remedy)
    if cut:
        yield _fault(
            "files", log.spec.name, f"files have another size than their log says: {_first_five(cut)}", remedy
        )


def _foreign_commits(log: LakeTable, numbers: list[int]) -> Iterator[LakeFinding]:
    foreign = [number for number in numbers if _is_foreign(log, number)]
    if foreign:
        undo = f"`DeltaTable({log.url!r}).restore({foreign[0] - 1})` takes them back"
        remedy = _REPLAY if log.spec.layer != "bronze" else undo
        problem = f"commits {_first_five(foreign)} added or removed rows and are none of a pipeline"
        yield _fault("rows", log.spec.name, problem, remedy)


def _is_foreign(log: LakeTable, number: int) -> bool:
    changes = log.changes(number - 1, number)
    return bool(changes.files or changes.removed) and not any(mark.startswith(_OWN) for mark in changes.marks)


def _first_five(some: list[Any]) -> str:
    shown = ", ".join(map(str, some[:5]))
    return shown if len(some) <= 5 else f"{shown} and {len(some) - 5} more"


# --- tables beside each other --------------------------------------------------------------------------------


def _layers(lake: Lake) -> Iterator[LakeFinding]:
    for error in rolled_back(lake):
        yield _fault("layers", error.table, str(error).partition(";")[0], _REPLAY)
    for source, made, mark in LINKS:
        log, target = _opened(lake, source), _opened(lake, made)
        reached = 0 if target is None else max(target.committed(mark), 0)
        if log is not None and _has_rows_after(log, reached):
            problem = f"it has version {reached} of {source}, which is at {log.version}"
            yield _fault("layers", made, problem, _RUN, level="behind")
    yield from _alerts(lake)


def _alerts(lake: Lake) -> Iterator[LakeFinding]:
    """Alerts are made of figures; their mark is the version of silver/attempts that the figures have."""
    figures, alerts = _opened(lake, "gold/queue_minute"), _opened(lake, "gold/alerts")
    made_of = 0 if figures is None else max(figures.committed(FIGURED), 0)
    reached = 0 if alerts is None else max(alerts.committed(ALERTED), 0)
    if reached < made_of:
        problem = f"it has version {reached} of silver/attempts, gold/queue_minute has {made_of}"
        yield _fault("layers", "gold/alerts", problem, _RUN, level="behind")


def _has_rows_after(log: LakeTable, version: int) -> bool:
    return version < log.version and bool(log.changes(version, log.version).files)


def _figures(lake: Lake) -> Iterator[LakeFinding]:
    attempts = _opened(lake, "silver/attempts")
    for name, column in _FIGURES.items():
        log = _opened(lake, name)
        if attempts is None or log is None or log.committed(FIGURED) != attempts.version:
            continue  # it is behind, which was said
        since = {"since": max(first_day_kept(one) or date(1970, 1, 1) for one in (attempts, log))}
        of = " and error is not null" if name == "gold/errors" else ""
        counted = _COUNTED.format(column=column, table=name.replace("/", "."))
        silver, gold = _by_queue(lake, _ATTEMPTS.format(of), since), _by_queue(lake, counted, since)
        for queue in sorted(silver.keys() | gold.keys()):
            if silver.get(queue, 0) != gold.get(queue, 0):
                problem = f"{queue}: {gold.get(queue, 0)} attempts, silver has {silver.get(queue, 0)}"
                yield _fault("figures", name, problem, _REPLAY)


def _by_queue(lake: Lake, sql: str, since: dict[str, date]) -> dict[str, int]:
    return {row["queue"]: row["n"] for row in lake.query(sql, since).to_pylist()}


def _gaps(lake: Lake) -> Iterator[LakeFinding]:
    sql = "select queue, count(*) as gaps, sum(lost)::bigint as lost from silver.gaps group by 1 order by 1"
    for row in lake.query(sql).to_pylist():
        lost = "an unknown number of" if row["lost"] is None else row["lost"]
        remedy = "keep `toril pipeline up` running, or let the queue keep more events (`events_max_len`)"
        yield _fault("gaps", row["queue"], f"{lost} events were lost in {row['gaps']} gaps", remedy)


def _opened(lake: Lake, name: str) -> LakeTable | None:
    try:
        return lake.table(name)
    except TableMissing:
        return None


# --- Redis ---------------------------------------------------------------------------------------------------


def _positions(lake: Lake, directory: QueueSelection, connect: Connect) -> Iterator[LakeFinding]:
    log = _opened(lake, EVENTS)
    if log is None:
        return
    with connect() as transport:
        found = directory.queues(transport)
        states = read_stream_states(
            transport, {queue: one.events for queue, one in found.items() if isinstance(one, QueueKeys)}
        )
    for row in lake.query("select distinct queue from bronze.events order by 1").to_pylist():
        queue = row["queue"]
        if directory.includes(queue):
            yield from _position(queue, committed_position(log, queue), states.get(queue))


def _position(queue: str, position: Position, state: StreamState | None) -> Iterator[LakeFinding]:
    if state is None:
        problem = "Redis has no events of it: it was obliterated, or this is another server"
        remedy = (
            "nothing, if that was meant: the tables keep its history; otherwise check --redis and --prefix"
        )
        yield _fault("positions", queue, problem, remedy)
    elif id_parts(state.last_id) < id_parts(position.id):
        problem = f"the tables have events up to {position.id}, Redis only up to {state.last_id}"
        remedy = (
            "it was obliterated and used again: `toril pipeline run` notes a gap and reads the new events"
        )
        yield _fault("positions", queue, problem, remedy)
    elif position != ORIGIN and _is_trimmed(position, state):
        problem = "events after the last one that was read are no longer in Redis"
        yield _fault("positions", queue, problem, "`toril pipeline run` counts them as lost")


def _is_trimmed(position: Position, state: StreamState) -> bool:
    if position.n is None or state.added is None:
        return False
    return state.added - position.n > state.length
