"""Workers of all queues: reports of toril's workers, and connections of all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from toril.commands import server
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import Page, View
from toril.errors import TorilError
from toril.protocol.keys import client_name

# A worker reports at every heartbeat, at most some 15 s apart.
STALE_SECONDS: Final = 60.0
MOST: Final = 500


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
    age: float | None  # seconds since its report, or since its last command

    @property
    def is_stale(self) -> bool:
        return self.origin == "toril" and self.age is not None and self.age > STALE_SECONDS


async def workers(view: View) -> Page:
    shown, errors, now_ms = await view.sources.overview(view.access)
    rows = [
        _reported(queue, report, now_ms)
        for queue in shown
        if queue.figures is not None
        for report in queue.figures.overview.workers
    ]
    for source in view.sources.all:
        try:
            clients = await source.run(server.client_list())
        except TorilError as error:
            errors[source.name] = str(error)
            continue
        rows += _connected([one for one in shown if one.source is source], clients, rows)
    rows.sort(key=lambda one: (one.queue.id, one.name))
    return Page(
        template="workers",
        title="Workers",
        place="workers",
        values={"rows": rows[:MOST], "total": len(rows), "errors": errors, "now_ms": now_ms},
    )


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
        uptime=_real(report.get("uptime")),
        heartbeats_failed=_whole(report.get("heartbeats_failed")) or 0,
        age=max(0.0, (now_ms - at) / 1000) if isinstance(at, (int, float)) else None,
    )


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and abs(value) < 1e17 else None


def _real(value: object) -> float | None:
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
                uptime=_real(int(client.get("age", "0") or 0)),
                heartbeats_failed=0,
                age=_real(int(client.get("idle", "0") or 0)),
            )
        )
    return rows
