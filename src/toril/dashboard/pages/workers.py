"""Workers of all queues: reports of toril's workers, and connections of all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from toril.commands import pages, server
from toril.commands.pages import JobPage
from toril.dashboard._rows import number_of, text_of
from toril.dashboard._sources import QueueSource, ShownQueue
from toril.dashboard._view import Page, View
from toril.errors import TorilError
from toril.protocol.keys import client_name
from toril.protocol.state import JobState

# A worker reports at every heartbeat, at most some 15 s apart.
STALE_SECONDS: Final = 60.0
MOST: Final = 500
# Running jobs that are read at once, of all queues: about 60 KB.
MOST_RUNNING: Final = 400
_RUNNING_FIELDS: Final = ("name", "processedOn", "pb")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker runs, and since when, in Unix milliseconds."""

    id: str
    name: str
    since_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """One worker of a queue."""

    queue: ShownQueue
    name: str
    state: str
    origin: str  # "toril": by its report; "connection": by CLIENT LIST
    jobs: int | None
    concurrency: int | None
    processed: int | None
    failed: int | None
    memory: int | None
    uptime: float | None
    heartbeats_failed: int
    running: list[RunningJob] = field(default_factory=list)  # those that were read, the oldest first
    age: float | None = None  # seconds since its report, or since its last command

    @property
    def is_stale(self) -> bool:
        return self.origin == "toril" and self.age is not None and self.age > STALE_SECONDS


async def workers(view: View) -> Page:
    seen = await view.sources.overview(view.access)
    rows: list[WorkerRow] = []
    for source in view.sources.all:
        if source.name in seen.errors:
            continue
        queues = [one for one in seen.queues if one.source is source and one.figures is not None]
        try:
            rows += await _workers_of(source, queues, seen.now_ms)
        except TorilError as error:
            seen.errors[source.name] = str(error)
    rows.sort(key=lambda one: (one.queue.id, one.name))
    return Page(
        template="workers",
        title="Workers",
        place="workers",
        values={"rows": rows[:MOST], "total": len(rows), "errors": seen.errors, "now_ms": seen.now_ms},
    )


async def _workers_of(source: QueueSource, queues: list[ShownQueue], now_ms: int) -> list[WorkerRow]:
    busy = [one for one in queues if one.figures is not None and one.figures.overview.worker_count]
    active = [one for one in queues if one.is_bullmq and one.figures and one.figures.states.get("active")]
    limit = max(1, MOST_RUNNING // max(1, len(active)))
    ask = [
        pages.job_page(one.keys, JobState.ACTIVE, newest_first=False, limit=limit, fields=_RUNNING_FIELDS)
        for one in active
    ]
    reports, (clients, *replies) = await source.reports(busy, server.client_list(), *ask)
    rows = [
        _reported(queue, report, now_ms)
        for queue, known in zip(busy, reports, strict=True)
        for report in known
    ]
    if isinstance(clients, TorilError):
        raise clients
    running = _running(active, replies)
    return [
        _with_jobs(row, running.get((row.queue.id, row.name), []))
        for row in rows + _connected(queues, clients, rows)
    ]


def _with_jobs(row: WorkerRow, running: list[RunningJob]) -> WorkerRow:
    """A report is as old as the last heartbeat: there may be more jobs than it says."""
    return replace(row, running=running, jobs=max(row.jobs or 0, len(running))) if running else row


def _running(
    queues: list[ShownQueue], replies: list[JobPage | TorilError]
) -> dict[tuple[str, str], list[RunningJob]]:
    """Returns the jobs that workers run, by queue and worker."""
    found: dict[tuple[str, str], list[RunningJob]] = {}
    for queue, reply in zip(queues, replies, strict=True):
        for row in reply.rows if isinstance(reply, JobPage) else []:
            worker = text_of(row.fields.get("pb"), "worker")
            job = RunningJob(
                id=row.id,
                name=text_of(row.fields.get("name"), "name"),
                since_ms=number_of(row.fields.get("processedOn")),
            )
            found.setdefault((queue.id, worker), []).append(job)
    return found


def _reported(queue: ShownQueue, report: Mapping[str, object], now_ms: int) -> WorkerRow:
    at = report.get("at")
    return WorkerRow(
        queue=queue,
        name=str(report.get("worker", "")),
        state=str(report.get("state", "")),
        origin="toril",
        jobs=_whole(report.get("jobs")),
        concurrency=_whole(report.get("concurrency")),
        processed=_whole(report.get("processed")),
        failed=_whole(report.get("failed")),
        memory=_whole(report.get("memory")),
        uptime=_finite_number(report.get("uptime")),
        heartbeats_failed=_whole(report.get("heartbeats_failed")) or 0,
        age=max(0.0, (now_ms - at) / 1000) if isinstance(at, (int, float)) else None,
    )


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and abs(value) < 1e17 else None


def _finite_number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e17 else None


def _connected(
    queues: list[ShownQueue], clients: list[dict[str, str]], known: list[WorkerRow]
) -> list[WorkerRow]:
    """Returns the workers that have no report: those of Node and of other libraries."""
    reported = {(row.queue.id, row.name) for row in known}
    by_name = {client_name(one.keys, "worker"): one for one in queues if one.is_bullmq and one.figures}
    rows = []
    for client in clients:
        unnamed, _, worker = client.get("name", "").partition(":w:")
        queue = by_name.get(unnamed)
        if queue is None or (queue.id, worker) in reported:
            continue
        rows.append(
            WorkerRow(
                queue=queue,
                name=worker or client.get("addr", ""),
                state="connected",
                origin="connection",
                jobs=None,
                concurrency=None,
                processed=None,
                failed=None,
                memory=None,
                uptime=_finite_number(int(client.get("age", "0") or 0)),
                heartbeats_failed=0,
                age=_finite_number(int(client.get("idle", "0") or 0)),
            )
        )
    return rows
