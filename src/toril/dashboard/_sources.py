"""The servers of a dashboard and their queues.

Guarantee: pages of one moment share what was read: the figures of a server are read at most once in `FRESH` seconds, in
one pipeline of bounded size, however many pages are open. Queues are searched for in the background, not in a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from toril.commands.command import Command
from toril.dashboard._rates import Rate, Rates, minute_commands
from toril.dashboard.access import Access
from toril.dashboard.options import DashboardOptions, ServerOptions
from toril.errors import TorilError
from toril.observe.discovery import QueueDiscovery
from toril.observe.overview import QueueFigures, decode_overview, overview_commands
from toril.producer import ListQueue, Queue, StreamQueue
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.transport import AsyncTransport, ConnectionPolicy, parse_address
from toril.transport.discovery import FoundQueue
from toril.transport.waiting import result_of, succeeded

T = TypeVar("T")

# Younger figures are not read again.
FRESH: Final = 1.0
# A page does not wait for new figures if there are some of this age: they are read in the background meanwhile.
STALE: Final = 2.0
SEARCH_EVERY: Final = 15.0
# A page waits so long for the first search.
MAX_WAIT_SECONDS: Final = 2.0
# Reports of workers that are read at once: about 150 KB.
MOST_REPORTS: Final = 400
# Of each queue, for an overview: only their number is shown.
REPORTS_OF_A_QUEUE: Final = 1
# A page must answer while a server is away: a banner is better than a page that loads for half a minute.
POLICY: Final = ConnectionPolicy(
    connect_timeout=2.0, command_timeout=5.0, call_attempts=2, max_reconnect_delay=1.0
)


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
class Picture:
    """The figures of all queues of a server at one moment."""

    at: float
    queues: list[ShownQueue]
    now_ms: int
    is_searched: bool = True  # False: the first search for queues has not ended
    by_id: dict[str, ShownQueue] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {one.id: one for one in self.queues}


@dataclass(frozen=True, slots=True)
class Reading:
    """One queue with its figures of now, and the values of the commands that were sent with them."""

    queue: ShownQueue
    now_ms: int
    values: list[Any]


@dataclass(slots=True, eq=False)
class QueueSource:
    """One server, and which of its queues are shown."""

    options: ServerOptions
    is_one_of_many: bool = False
    transport: AsyncTransport = field(init=False)
    rates: Rates = field(init=False)
    _discovery: QueueDiscovery | None = field(init=False, default=None)
    _picture: Picture | None = field(init=False, default=None)
    _reading: asyncio.Task[Picture] | None = field(init=False, default=None)
    _changes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.transport = AsyncTransport(self.options.redis, policy=POLICY)
        self.rates = Rates()

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

    async def reports(
        self, queues: Sequence[ShownQueue], *commands: Command[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Returns the reports of the workers of each queue and the values of the commands, read in one pipeline."""
        most = max(1, MOST_REPORTS // max(1, len(queues)))
        ask = overview_commands([one.found for one in queues], max_reports=most)
        replies = await self.transport.run_many([*ask, *commands])
        overview = decode_overview([one.found for one in queues], replies[: len(ask)])
        by_queue = {one.queue: one.overview.workers for one in overview.queues}
        return [by_queue.get(one.found, []) for one in queues], replies[len(ask) :]

    async def read(self, queue: ShownQueue, *commands: Command[Any]) -> Reading:
        """Reads the figures of one queue and what else a page needs, in one pipeline; raises the first error."""
        ask = overview_commands([queue.found], max_reports=1)
        minutes = minute_commands(queue.found)
        replies = await self.transport.run_many([*ask, *minutes, *commands])
        overview = decode_overview([queue.found], replies[: len(ask)])
        values = replies[len(ask) + len(minutes) :]
        for value in values:
            if isinstance(value, TorilError):
                raise value
        figures = replace(overview.queues[0], label=queue.label) if overview.queues else None
        rate = self.rates.of_queue(figures, replies[len(ask) :][: len(minutes)]) if figures else None
        error = "".join(str(one) for one in overview.errors.values())
        return Reading(replace(queue, figures=figures, rate=rate, error=error), overview.now_ms, values)

    async def find(self, queue_id: str) -> ShownQueue | None:
        """Returns a queue by its name in the dashboard, with figures that may be old."""
        picture = self._picture or await self.overview()
        if queue_id in picture.by_id:
            return picture.by_id[queue_id]
        found = await self.discovery.queues()
        if len(found) != len(picture.queues):
            picture = await self._refreshed()
        return picture.by_id.get(queue_id)

    def known_queues(self, access: Access) -> list[ShownQueue]:
        """Returns the queues that a person sees, with figures that may be old; nothing is read."""
        return [] if self._picture is None else [one for one in self._picture.queues if access.sees(one.id)]

    @property
    def discovery(self) -> QueueDiscovery:
        if self._discovery is None:
            self._discovery = QueueDiscovery(
                self.transport,
                self.options.queues,
                prefix=self.options.prefix,
                env=self.options.env,
                search_every=SEARCH_EVERY,
            )
        return self._discovery

    async def overview(self) -> Picture:
        """Returns the figures of all queues, at most `STALE` seconds old; above `FRESH` they are read again."""
        picture = self._picture
        age = STALE + 1 if picture is None else time.monotonic() - picture.at
        if picture is None or age > STALE:
            return await self._refreshed()
        if age > FRESH:
            self.begin()
        return picture

    def outdate(self) -> None:
        """Has the figures read again for the next page: something was changed."""
        self._changes += 1
        self._reading = None
        if self._picture is not None:
            self._picture.at = -STALE

    async def _refreshed(self) -> Picture:
        """Returns figures of now. Pages that ask at once share one reading, which no page can cancel."""
        return await result_of(self.begin())

    def begin(self) -> asyncio.Task[Picture]:
        """Has the figures read, in the background."""
        if self._reading is None or self._reading.done():
            self._reading = self.transport.spawn(self._read())
            self._reading.add_done_callback(succeeded)  # marks its error as seen
        return self._reading

    async def _read(self) -> Picture:
        changes = self._changes
        found = await self.discovery.queues(wait_seconds=MAX_WAIT_SECONDS)
        ask = overview_commands(found, max_reports=REPORTS_OF_A_QUEUE)
        more = self.rates.commands(found)
        replies = await self.transport.run_many([*ask, *more])
        overview = decode_overview(found, replies[: len(ask)])
        self.rates.learn(replies[len(ask) :])
        rates = self.rates.of(overview)
        shown = [
            ShownQueue(source=self, found=one.queue, label=one.label, figures=one, rate=rates.get(one.label))
            for one in overview.queues
        ]
        seen = {one.found for one in shown}
        # Errors are in the order of the queues that could not be read.
        unread = [one for one in found if one not in seen]
        for queue, (label, error) in zip(unread, overview.errors.items(), strict=True):
            shown.append(ShownQueue(source=self, found=queue, label=label, error=str(error)))
        shown.sort(key=lambda one: one.label)
        # What was read may be older than a change that was made meanwhile.
        at = time.monotonic() if changes == self._changes else -STALE
        self._picture = Picture(at, shown, overview.now_ms, self.discovery.is_searched)
        return self._picture

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


@dataclass(slots=True)
class Overview:
    """The queues that a person sees, the errors of servers that did not answer, and the time."""

    queues: list[ShownQueue] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    now_ms: int = 0
    is_searched: bool = True
    moments: list[float] = field(default_factory=list)  # of the figures of each server

    def add(self, picture: Picture, access: Access) -> None:
        self.queues += (one for one in picture.queues if access.sees(one.id))
        self.now_ms = picture.now_ms
        self.is_searched = self.is_searched and picture.is_searched
        self.moments.append(picture.at)


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

    async def overview(self, access: Access) -> Overview:
        """Returns the queues that a person sees; raises if no server answers."""
        pictures = await asyncio.gather(*(one.overview() for one in self.all), return_exceptions=True)
        seen = Overview()
        for source, picture in zip(self.all, pictures, strict=True):
            if isinstance(picture, TorilError):
                seen.errors[source.name] = str(picture)
            elif isinstance(picture, BaseException):
                raise picture
            else:
                seen.add(picture, access)
        if seen.errors and len(seen.errors) == len(self.all):
            raise next(one for one in pictures if isinstance(one, TorilError))
        seen.now_ms = seen.now_ms or round(time.time() * 1000)
        return seen

    async def find(self, queue_id: str, access: Access) -> ShownQueue | None:
        """Returns a queue by its name in the dashboard; None if there is none or it is not granted."""
        if not access.sees(queue_id):
            return None
        for source in self.all:
            found = await source.find(queue_id)
            if found is not None:
                return found
        return None

    def take_lake_rates(self, rates: Mapping[str, Rate]) -> None:
        """Takes the rates of the lake, which does not know of which server a queue is: with one server only."""
        if len(self.all) == 1:
            self.all[0].rates.lake = rates

    def prepare(self) -> None:
        """Begins to search for queues, so that the first page need not wait for it."""
        for one in self.all:
            one.begin()

    def outdate(self) -> None:
        """Has all figures read again for the next page."""
        for one in self._sources or []:
            one.outdate()

    async def close(self) -> None:
        sources, self._sources = self._sources or [], None
        for one in sources:
            await one.close()
