"""The servers of a dashboard and their queues.

Guarantee: pages of one moment share what was read: the figures of a server are read at most once in `FRESH` seconds, in
one pipeline, however many pages are open. Queues are searched for in the background, not within a request.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from toril.commands import read
from toril.commands.command import Command
from toril.commands.overview import EnvelopeOverview
from toril.commands.read import Metrics
from toril.dashboard.access import Access
from toril.dashboard.options import DashboardOptions, ServerOptions
from toril.errors import TorilError
from toril.observe.discovery import QueueDiscovery
from toril.observe.overview import QueueFigures, ServerOverview, read_overview
from toril.producer import ListQueue, Queue, StreamQueue
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport, ConnectionPolicy, parse_address
from toril.transport.discovery import FoundQueue

T = TypeVar("T")

# Several pages that are asked for at once show the same figures.
FRESH: Final = 1.0
SEARCH_EVERY: Final = 15.0
# Samples of the counts, from which a rate is computed when nothing better is known: two minutes.
SAMPLES: Final = 60
# A page must answer while a server is away: a banner is better than a page that loads for half a minute.
POLICY: Final = ConnectionPolicy(
    connect_timeout=2.0, command_timeout=5.0, call_attempts=2, max_reconnect_delay=1.0
)
MINUTES: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Jobs per minute that completed and failed, and where the figures come from."""

    completed: list[float]  # for each past minute or sample, oldest first
    failed: list[float]
    origin: str  # "BullMQ metrics" or "samples"
    covers: str  # the time of the figures
    now: float  # completed: the last whole minute, or the mean of the samples
    failed_now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQueue:
    """A queue of a source, and its figures if they were read."""

    source: QueueSource
    found: FoundQueue
    label: str
    figures: QueueFigures | None = None
    rate: Rate | None = None
    error: str = ""

    @property
    def id(self) -> str:
        """The queue's name in URLs, in operations and in the audit."""
        return f"{self.source.name}::{self.label}" if self.source.is_one_of_many else self.label

    @property
    def is_bullmq(self) -> bool:
        return self.found.kind == "bullmq"

    @property
    def keys(self) -> Any:
        return self.found.keys


@dataclass(slots=True)
class _Picture:
    at: float
    queues: list[ShownQueue]
    now_ms: int


@dataclass(slots=True, eq=False)
class QueueSource:
    """One server, and which of its queues are shown."""

    options: ServerOptions
    is_one_of_many: bool = False
    transport: AsyncTransport = field(init=False)
    _discovery: QueueDiscovery | None = field(init=False, default=None)
    _picture: _Picture | None = field(init=False, default=None)
    _samples: deque[tuple[float, dict[str, tuple[int, int]]]] = field(init=False)
    _reading: asyncio.Lock = field(init=False)

    def __post_init__(self) -> None:
        self.transport = AsyncTransport(self.options.redis, policy=POLICY)
        self._samples = deque(maxlen=SAMPLES)
        self._reading = asyncio.Lock()

    @property
    def name(self) -> str:
        return self.options.name or parse_address(self.options.redis).label

    @property
    def prefix(self) -> str:
        """The prefix of the dashboard's own keys: audit and operations."""
        return self.options.prefix or BULLMQ_PREFIX

    async def run(self, command: Command[T]) -> T:
        return await self.transport.run(command)

    async def run_all(self, *commands: Command[Any]) -> list[Any]:
        """Runs a pipeline and returns its values; raises the first error."""
        values = await self.transport.run_many(commands)
        for value in values:
            if isinstance(value, TorilError):
                raise value
        return values

    async def queues(self) -> list[ShownQueue]:
        """Returns the queues without their figures."""
        picture = self._picture
        if picture is not None:
            found = await self._search().queues()
            if len(found) == len(picture.queues):
                return picture.queues
        return (await self.overview()).queues

    def _search(self) -> QueueDiscovery:
        if self._discovery is None:
            self._discovery = QueueDiscovery(
                self.transport,
                self.options.queues,
                prefix=self.options.prefix,
                env=self.options.env,
                search_every=SEARCH_EVERY,
            )
        return self._discovery

    async def overview(self, max_age: float = FRESH) -> _Picture:
        """Returns the figures of all queues, read at most `max_age` seconds ago."""
        async with self._reading:
            picture = self._picture
            if picture is None or time.monotonic() - picture.at > max_age:
                self._picture = picture = await self._read()
            return picture

    async def _read(self) -> _Picture:
        found = await self._search().queues()
        overview = await read_overview(self.transport, found)
        rates = await self._rates(overview)
        shown = [
            ShownQueue(source=self, found=one.queue, label=one.label, figures=one, rate=rates.get(one.label))
            for one in overview.queues
        ]
        seen = {one.found for one in shown}
        # Errors are in the order of the queues that could not be read.
        unread = [one for one in found if one not in seen]
        for queue, (label, error) in zip(unread, overview.errors.items(), strict=True):
            shown.append(ShownQueue(source=self, found=queue, label=label, error=str(error)))
        return _Picture(time.monotonic(), sorted(shown, key=lambda one: one.label), overview.now_ms)

    async def _rates(self, overview: ServerOverview) -> dict[str, Rate]:
        bullmq = [one for one in overview.queues if isinstance(one.queue.keys, QueueKeys)]
        commands = [
            read.get_metrics(one.queue.keys, kind, end=MINUTES - 1)  # type: ignore[arg-type]
            for one in bullmq
            for kind in ("completed", "failed")
        ]
        replies = await self.transport.run_many(commands)
        rates = self._sampled(overview)
        for at, one in enumerate(bullmq):
            completed, failed = replies[2 * at : 2 * at + 2]
            if (
                isinstance(completed, Metrics)
                and isinstance(failed, Metrics)
                and (completed.minutes or failed.minutes)
            ):
                rates[one.label] = _of_metrics(completed, failed, overview.now_ms)
        return rates

    def _sampled(self, overview: ServerOverview) -> dict[str, Rate]:
        """Returns rates by two samples: totals of list and stream queues, counts of finished jobs of BullMQ queues."""
        now = time.monotonic()
        counts = {one.label: _ended(one) for one in overview.queues}
        self._samples.append((now, counts))
        minutes = (now - self._samples[0][0]) / 60
        if minutes <= 0:
            return {}
        return {label: self._rate(label, minutes) for label in counts if label in self._samples[0][1]}

    def _rate(self, label: str, minutes: float) -> Rate:
        """Returns the growth between samples. A count that falls, because old jobs are removed, tells nothing."""
        known = [(at, counts[label]) for at, counts in self._samples if label in counts]
        steps = [
            (max(0, new[0] - old[0]), max(0, new[1] - old[1]), (at - before) / 60)
            for (before, old), (at, new) in itertools.pairwise(known)
        ]
        return Rate(
            completed=[done / span for done, _, span in steps],
            failed=[failed / span for _, failed, span in steps],
            origin="samples",
            covers=f"the last {minutes * 60:.0f} seconds",
            now=sum(done for done, _, _ in steps) / minutes,
            failed_now=sum(failed for _, failed, _ in steps) / minutes,
        )

    def open(self, found: FoundQueue) -> Queue | ListQueue | StreamQueue:
        """Returns the queue for a change; it connects with its first use and writes no meta."""
        common: dict[str, Any] = {"redis": self.options.redis, "prefix": found.prefix, "policy": POLICY}
        match found.kind:
            case "bullmq":
                return Queue(found.name, **common, hash_tag=found.hash_tag, skip_meta=True)
            case "list":
                return ListQueue(found.name, **common, env=found.env)
            case "stream":
                return StreamQueue(found.name, **common, env=found.env)

    async def close(self) -> None:
        if self._discovery is not None:
            await self._discovery.close()
        await self.transport.close()


def _ended(figures: QueueFigures) -> tuple[int, int]:
    seen = figures.overview
    if isinstance(seen, EnvelopeOverview):
        return seen.totals.get("completed", 0), seen.totals.get("dead", 0)
    return seen.counts.completed, seen.counts.failed


def _of_metrics(completed: Metrics, failed: Metrics, now_ms: int) -> Rate:
    done, lost = _minutes(completed, now_ms), _minutes(failed, now_ms)
    return Rate(
        completed=done,
        failed=lost,
        origin="BullMQ metrics",
        covers="an hour",
        now=done[-1],
        failed_now=lost[-1],
    )


def _minutes(metrics: Metrics, now_ms: int) -> list[float]:
    """Returns an hour of minutes, oldest first. BullMQ writes a minute when a later job ends: those since are 0."""
    since = max(0, now_ms // 60_000 - metrics.previous_at_ms // 60_000) if metrics.previous_at_ms else 0
    past = [0.0] * min(since, MINUTES) + [float(one) for one in metrics.minutes]
    return ([0.0] * MINUTES + past[:MINUTES][::-1])[-MINUTES:]


class Sources:
    """All servers of a dashboard."""

    def __init__(self, options: DashboardOptions) -> None:
        self._options = options
        self._sources: list[QueueSource] | None = None

    @property
    def all(self) -> Sequence[QueueSource]:
        """The servers; they are opened by the first request, in its event loop."""
        if self._sources is None:
            many = len(self._options.servers) > 1
            self._sources = [QueueSource(one, is_one_of_many=many) for one in self._options.servers]
        return self._sources

    async def overview(self, access: Access) -> tuple[list[ShownQueue], dict[str, str], int]:
        """Returns the queues that a person sees, the errors of servers that did not answer, and the time (ms)."""
        pictures = await asyncio.gather(*(one.overview() for one in self.all), return_exceptions=True)
        shown: list[ShownQueue] = []
        errors: dict[str, str] = {}
        now_ms = 0
        for source, picture in zip(self.all, pictures, strict=True):
            if isinstance(picture, TorilError):
                errors[source.name] = str(picture)
            elif isinstance(picture, BaseException):
                raise picture
            else:
                shown += (one for one in picture.queues if access.sees(one.id))
                now_ms = picture.now_ms
        if errors and len(errors) == len(self.all):
            raise next(one for one in pictures if isinstance(one, TorilError))
        return shown, errors, now_ms or round(time.time() * 1000)

    async def find(self, queue_id: str, access: Access) -> ShownQueue | None:
        """Returns a queue by its name in the dashboard; None if there is none or it is not granted."""
        if not access.sees(queue_id):
            return None
        for source in self.all:
            for one in await source.queues():
                if one.id == queue_id:
                    return one
        return None

    async def close(self) -> None:
        sources, self._sources = self._sources or [], None
        for one in sources:
            await one.close()
