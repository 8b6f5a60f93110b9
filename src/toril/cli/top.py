"""`toril top`: a live view of all queues.

Guarantee: each picture reads what a scrape of the exporter reads, and a few jobs of each queue; nothing is changed.
Without a terminal the pictures are printed one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from toril.cli._options import AsJson, Env, Prefix, QueuesOption, RedisUrl, queue_names
from toril.cli._output import console, emit_line
from toril.cli._queue_facts import queue_facts
from toril.cli._target import Target
from toril.cli._top_screen import NEWEST_FAILURES, SLOWEST, JobLine, Picture, render, render_svg
from toril.commands import read
from toril.errors import RedisUnavailable, TorilError
from toril.observe.discovery import QueueDiscovery
from toril.observe.overview import QueueFigures, ServerOverview, read_overview
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.transport import AsyncTransport

# Number of pictures over which rates are computed.
PICTURES = 6
SAMPLE = 20  # active jobs of a queue among which the slowest are searched


def add_to(app: typer.Typer) -> None:
    app.command("top")(top)


def top(
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between pictures.")] = 1.0,
    pictures: Annotated[
        int | None, typer.Option("--pictures", min=1, help="Exit after so many pictures.")
    ] = None,
    queues: QueuesOption = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Also write the last picture to an SVG file.")
    ] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Show rates, states, workers, slow and failed jobs, updated until Ctrl-C."""
    target = Target.of(redis, prefix, env)
    last_picture: list[Picture] = []
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            _show_pictures(target, queue_names(queues), every, pictures, last_picture, as_json=as_json)
        )
    if svg is not None and last_picture:
        svg.write_text(render_svg(last_picture[-1]), encoding="utf-8")


class OverviewReader:
    """Reads pictures, and computes rates from the last ones."""

    def __init__(self, transport: AsyncTransport, discovery: QueueDiscovery) -> None:
        self._transport = transport
        self._discovery = discovery
        self._past: deque[tuple[float, dict[str, dict[str, int]]]] = deque(maxlen=PICTURES)

    async def read_overview(self) -> Picture:
        overview = await read_overview(self._transport, await self._discovery.queues())
        numbers = {one.label: _totals(one) for one in overview.queues}
        events = await self._events(overview)
        for queue, counts in events.items():
            numbers[queue] |= counts
        self._past.append((time.monotonic(), numbers))
        slowest, failing = await self._jobs(overview)
        return Picture(overview=overview, rates=self._rates(), slowest=slowest, failing=failing)

    async def _events(self, overview: ServerOverview) -> dict[str, dict[str, int]]:
        """Returns the total number of events of each BullMQ queue."""
        queues = [one for one in overview.queues if isinstance(one.queue.keys, QueueKeys)]
        states = await self._transport.run_many([read.event_total(_keys(one)) for one in queues])
        return {
            one.label: {"events": state}
            for one, state in zip(queues, states, strict=True)
            if isinstance(state, int)
        }

    def _rates(self) -> dict[str, dict[str, float]]:
        (then, old), (now, new) = self._past[0], self._past[-1]
        span = now - then
        if span <= 0:
            return {}
        return {
            queue: {
                name: max(0, count - old[queue].get(name, count)) / span for name, count in numbers.items()
            }
            for queue, numbers in new.items()
            if queue in old
        }

    async def _jobs(self, overview: ServerOverview) -> tuple[list[JobLine], list[JobLine]]:
        queues = [one for one in overview.queues if isinstance(one.queue.keys, QueueKeys)]
        active = await self._jobs_in(queues, "active", SAMPLE)
        failed = await self._jobs_in(queues, "failed", NEWEST_FAILURES)
        slowest = [_line(queue, record, overview.now_ms, "processedOn") for queue, record in active]
        failing = [_line(queue, record, overview.now_ms, "finishedOn") for queue, record in failed]
        slowest.sort(key=lambda one: -one.seconds)
        failing.sort(key=lambda one: one.seconds)
        return slowest[:SLOWEST], failing[:NEWEST_FAILURES]

    async def _jobs_in(
        self, queues: Sequence[QueueFigures], state: str, count: int
    ) -> list[tuple[str, JobRecord]]:
        ascending = state == "active"
        pages = await self._transport.run_many(
            [read.get_ranges(_keys(one), [state], end=count - 1, ascending=ascending) for one in queues]
        )
        wanted = [
            (one, job_id)
            for one, page in zip(queues, pages, strict=True)
            if not isinstance(page, TorilError)
            for job_id in page
        ]
        fields = ["name", "processedOn", "finishedOn", "failedReason"]
        hashes = await self._transport.run_many(
            [read.get_fields(_keys(one), job_id, fields) for one, job_id in wanted]
        )
        return [
            (one.label, JobRecord(job_id, _known(fields, values)))
            for (one, job_id), values in zip(wanted, hashes, strict=True)
            if not isinstance(values, TorilError)
        ]


def _known(fields: Sequence[str], values: Sequence[bytes | None]) -> dict[bytes, bytes]:
    return {name.encode(): value for name, value in zip(fields, values, strict=True) if value is not None}


def _keys(figures: QueueFigures) -> QueueKeys:
    keys = figures.queue.keys
    if not isinstance(keys, QueueKeys):
        raise TypeError(f"{figures.queue} is not a BullMQ queue")
    return keys


def _line(queue: str, record: JobRecord, now_ms: int, since: str) -> JobLine:
    at = record.text(since) or ""
    ago = max(0, now_ms - int(at)) / 1000 if at.isdigit() else 0.0
    text = record.failed_reason or ""
    return JobLine(queue=queue, job_id=record.id, name=record.name, seconds=ago, text=text)


def _totals(figures: QueueFigures) -> dict[str, int]:
    """Returns totals from which rates are computed."""
    totals = figures.totals
    if figures.queue.kind != "bullmq":
        return {"completed": totals.get("completed", 0), "failed": totals.get("dead", 0)}
    return {name: figures.states.get(name, 0) for name in ("completed", "failed")}


async def _show_pictures(
    target: Target,
    names: list[str],
    every: float,
    pictures: int | None,
    last_picture: list[Picture],
    *,
    as_json: bool,
) -> None:
    screen = console()
    async with AsyncTransport(target.redis) as transport:
        discovery = QueueDiscovery(transport, names, prefix=target.prefix, env=target.env, search_every=10)
        reader = OverviewReader(transport, discovery)
        live = (
            Live(console=screen, auto_refresh=False, screen=True)
            if screen.is_terminal and not as_json
            else None
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(discovery.close)
            stack.enter_context(live or contextlib.nullcontext())
            shown = 0
            while pictures is None or shown < pictures:
                try:
                    picture = await reader.read_overview()
                except RedisUnavailable as error:
                    # Waits for a server that restarts, but not for one that never answered.
                    if not shown or live is None:
                        raise
                    live.update(Text(f"toril top  {error}"), refresh=True)
                else:
                    last_picture[:] = [picture]
                    _show(picture, live, as_json=as_json)
                shown += 1
                if shown != pictures:
                    await asyncio.sleep(every)


def _show(picture: Picture, live: Live | None, *, as_json: bool) -> None:
    if as_json:
        emit_line(_as_json(picture))
    elif live is not None:
        screen = live.console.size
        live.update(render(picture, screen.width, screen.height), refresh=True)
    else:
        screen_like = console()
        screen_like.print(render(picture, screen_like.width))


def _as_json(picture: Picture) -> dict[str, object]:
    return {
        "time_ms": picture.overview.now_ms,
        "queues": [
            {**queue_facts(one), "rates": picture.rates.get(one.label, {})} for one in picture.overview.queues
        ],
        "slowest": picture.slowest,
        "failing": picture.failing,
    }
