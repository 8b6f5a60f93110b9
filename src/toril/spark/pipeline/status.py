"""The state of a pipeline, read from its tables; any process can read it, also while another one writes.

Guarantee: every figure is read anew; a server that does not answer leaves its part empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from toril.errors import RedisError
from toril.lake import Lake, TableMissing, TableRolledBack
from toril.lake.delta_table import LakeTable
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.bronze.stream_positions import TABLE, committed_position
from toril.spark.pipeline.files.lineage import check_layers
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.positions import read_stream_states
from toril.transport import BlockingTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table: its size and its last change."""

    table: str
    version: int
    rows: int
    files: int
    bytes: int
    changed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue: how many events the table has yet to read."""

    queue: str
    added: int | None
    read: int | None

    @property
    def behind(self) -> int | None:
        return None if self.added is None or self.read is None else self.added - self.read


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The pipeline as a whole."""

    lake: str
    tables: list[TableStatus]
    queues: list[QueueStatus] = field(default_factory=list)
    silver_behind: int = 0  # commits of bronze that silver has yet to refine
    lost: int = 0  # events that were trimmed before they could be read
    uncounted_gaps: int = 0  # gaps of which nobody knows how many events they hide
    alerts: int = 0
    problem: str | None = None  # why the queues are not listed
    rolled_back: str | None = None  # which table holds less than what was made of it, and what to do

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "queues": [{**asdict(one), "behind": one.behind} for one in self.queues]}


def status(lake: Lake, directory: QueueSelection, connect: Callable[[], BlockingTransport]) -> Status:
    """The state of the tables, and of the queues if the server answers."""
    tables = [_table_status(lake.table(name)) for name in lake.tables()]
    try:
        queues, problem = _queue_status(lake, directory, connect), None
    except RedisError as error:
        queues, problem = [], str(error)
    return Status(
        lake=lake.url,
        tables=tables,
        queues=queues,
        silver_behind=_unrefined_commits(lake),
        lost=int(_single_value(lake, "select coalesce(sum(lost), 0) from silver.gaps")),
        uncounted_gaps=int(_single_value(lake, "select count(*) from silver.gaps where lost is null")),
        alerts=int(_single_value(lake, "select count(*) from gold.alerts")),
        problem=problem,
        rolled_back=_rolled_back(lake),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineLag:
    """How far the tables are behind the queues, and when they were last written."""

    queues: list[QueueStatus]
    committed_at: dict[str, float]  # table → seconds since 1970


def lag(lake: Lake, directory: QueueSelection, connect: Callable[[], BlockingTransport]) -> PipelineLag:
    """Reads positions and logs, no rows; `RedisError` if the server does not answer."""
    times = {name: _last_commit(lake.table(name)) for name in lake.tables()}
    known = {name: at / 1000 for name, at in times.items() if at is not None}
    return PipelineLag(queues=_queue_status(lake, directory, connect), committed_at=known)


def _last_commit(log: LakeTable) -> int | None:
    return log.commit_time(log.version)


def _rolled_back(lake: Lake) -> str | None:
    try:
        check_layers(lake)
    except TableRolledBack as error:
        return str(error)
    return None


def _table_status(log: LakeTable) -> TableStatus:
    files = log.files()
    history = log.delta.history(1)
    at = history[0].get("timestamp") if history else None
    return TableStatus(
        table=log.spec.name,
        version=log.version,
        rows=sum(file.rows for file in files),
        files=len(files),
        bytes=sum(file.size for file in files),
        changed_at=datetime.fromtimestamp(at / 1000, UTC) if at else None,
    )


def _queue_status(
    lake: Lake, directory: QueueSelection, connect: Callable[[], BlockingTransport]
) -> list[QueueStatus]:
    with connect() as transport:
        found = directory.queues(transport)
        states = read_stream_states(
            transport, {queue: keys.events for queue, keys in found.items() if isinstance(keys, QueueKeys)}
        )
    try:
        log = lake.table(TABLE)
    except TableMissing:
        return [QueueStatus(queue=queue, added=state.added, read=0) for queue, state in states.items()]
    return [
        QueueStatus(queue=queue, added=state.added, read=committed_position(log, queue).n)
        for queue, state in states.items()
    ]


def _unrefined_commits(lake: Lake) -> int:
    try:
        bronze, jobs = lake.table("bronze/events"), lake.table("silver/jobs")
    except TableMissing:
        return 0
    return max(0, bronze.version - max(jobs.committed("toril.refine"), 0))


def _single_value(lake: Lake, sql: str) -> Any:
    return lake.query(sql).column(0)[0].as_py()
