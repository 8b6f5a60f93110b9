"""One reading of a queue's event stream, from an id onwards.

Guarantee: events come in order and once; entries that the server trimmed before we read them are reported as a `Gap`,
never skipped in silence; after a lost connection the reading goes on at the same place, asked for ever more rarely, and
ends with the error that it met last when the policy sets a limit.

The server hands new entries over as they are added, which costs it and us little, and says nothing of those it trimmed.
So a reading that keeps up waits again at once; it looks, and counts, when it was away for a moment, when a page was
full, every second while entries come, and when none have come for a moment. What a look finds missing among entries
that were handed over is a `Gap`, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from toril.commands.read import Entry, read_events
from toril.commands.streams import Page, follow
from toril.errors import Closed, RedisUnavailable
from toril.protocol.event import Event, RetryDeriver
from toril.protocol.keys import QueueKeys, client_name
from toril.transport import AsyncTransport, Reader
from toril.transport.waiting import Closing, waited

logger = logging.getLogger("toril.events")

PAGE: Final = 500  # entries in one reply: some 100 kB, a few milliseconds of our time
BLOCK_SECONDS: Final = 10.0  # as long as Node's; a connection that died silently is noticed after it
BEGINNING: Final = "0-0"
LOOK_SECONDS: Final = 1.0  # so long a reading may go on without counting
PROMPT_SECONDS: Final = 0.02  # whoever asks for more within it has kept up
SETTLE_SECONDS: Final = 0.05  # so long we wait without a look: silence must not hide a gap
_UNBLOCK_SECONDS: Final = 1.0  # a server that does not let go within it is not there


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing: they were trimmed, or the stream was deleted, before they could be read.

    The state of jobs is in their hashes: whoever keeps books from events should look there now.
    """

    after: str  # the last event that is certainly before the gap
    id: str  # where it has ended: an event after it, or the last one that is missing if there is none yet
    missed: int | None  # how many are missing; None when nobody can tell

    type: str = "gap"  # so that a gap can stand among events
    job_id: str | None = None


class EventStream:
    """Reads one queue's events after `after`: an id, `0` for all that is left, `$` for what happens from now on."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: QueueKeys,
        after: str = "$",
        *,
        block: float = BLOCK_SECONDS,
        derive_retries: bool = True,
    ) -> None:
        self._transport = transport
        self._keys = keys
        self._block = block
        self._place = Place(after)
        self._deriver = RetryDeriver() if derive_retries else None
        self._caught_up = False
        self._looked = self._heard = 0.0  # when we last counted, and when entries were last handed over
        self._resources = AsyncExitStack()
        self._reader: Reader | None = None
        self._idle = asyncio.Event()  # no read is in flight
        self._idle.set()
        self._attempt = 0
        self._end = asyncio.Event()
        self._closing = Closing(self._shut, f"toril-close-stream-{keys.name}")

    @property
    def closed(self) -> bool:
        return self._end.is_set()

    @property
    def last_id(self) -> str:
        """Where the reading stands: another stream that is given this id goes on from here."""
        return self._place.id

    async def open(self) -> None:
        """Finds its place: from here on nothing is missed. Raises when the server cannot be reached."""
        if not self._place.known:
            page = await self._transport.run(follow(self._keys.events, BEGINNING, 0))
            self._place.settle(page)

    async def next_batch(self) -> Sequence[Event | Gap]:
        """Events that are there or come while we wait; empty when none came in time, or after `close`."""
        while not self._end.is_set():
            try:
                batch = await self._next()
            except RedisUnavailable as error:
                await self._step_back(error)
                continue
            except Closed:
                if not self._end.is_set():
                    raise
                break
            self._attempt = 0
            return batch
        return ()

    async def _next(self) -> Sequence[Event | Gap]:
        await self.open()
        if self._caught_up or self._keeps_up():
            block = self._block if self._caught_up else min(self._block, SETTLE_SECONDS)
            self._caught_up = False  # What we wait for may be the first of many.
            return self._derived(await self._wait(block))
        batch = self._take(await self._look())
        if not batch:
            self._caught_up = True
            # Nobody will say any more why a job went back to waiting.
            return list(self._deriver.flush()) if self._deriver is not None else ()
        return batch

    def _keeps_up(self) -> bool:
        """Whether we may wait again without a look: we have just heard, and counted not long ago."""
        if self._deriver is not None and self._deriver.holds:
            return False  # whether more will come, only a look tells
        now = time.monotonic()
        return now - self._heard < PROMPT_SECONDS and now - self._looked < LOOK_SECONDS

    async def _look(self) -> Page:
        self._looked, self._heard = time.monotonic(), 0.0
        count_before = self._place.seen is None
        return await self._transport.run(
            follow(self._keys.events, self.last_id, PAGE, count_before=count_before)
        )

    def _take(self, page: Page) -> list[Event | Gap]:
        gap = self._place.gap(page)
        events = [_event(entry) for entry in page.entries]
        self._place.advance(page)
        return [gap, *self._derived(events)] if gap is not None else list(self._derived(events))

    async def _wait(self, block: float) -> list[Event]:
        """Blocks for new entries, which the server hands over as they are added."""
        reader = await self._opened_reader()
        command = read_events([self._keys], [self.last_id], block_ms=int(block * 1000), count=PAGE)
        self._idle.clear()
        try:
            entries = (await reader.run(command, block)).get(self._keys.events, [])
        finally:
            self._idle.set()
        self._place.pass_by(entries)
        self._heard = time.monotonic() if 0 < len(entries) < PAGE else 0.0
        return [_event(entry) for entry in entries]

    def _derived(self, events: Sequence[Event]) -> Sequence[Event]:
        return events if self._deriver is None else list(self._deriver.feed(events))

    async def _opened_reader(self) -> Reader:
        if self._end.is_set():
            raise Closed("the event stream was closed")
        if self._reader is None:
            name = client_name(self._keys, "events")
            self._reader = await self._resources.enter_async_context(self._transport.reader(name=name))
        return self._reader

    async def _step_back(self, error: RedisUnavailable) -> None:
        policy = self._transport.policy
        if 0 < policy.max_reconnect_attempts <= self._attempt:
            logger.error("events of %s: Redis stays away after %d attempts", self._keys.name, self._attempt)
            raise error
        delay = policy.delay_before(self._attempt)
        self._attempt += 1
        logger.warning("events of %s: %s; next attempt in %.1f s", self._keys.name, error, delay)
        self._caught_up, self._heard = False, 0.0
        await waited(delay, self._end)

    async def close(self) -> None:
        """Ends the reading; whoever waits in `next_batch` gets an empty one."""
        self._end.set()
        await self._closing.finish()

    async def _shut(self) -> None:
        # A reader that still connects has asked for nothing: closing it ends the wait.
        if self._reader is not None and self._reader.blocked:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNBLOCK_SECONDS):
                    await self._reader.unblock()
                    await self._idle.wait()
        await self._resources.aclose()


class Place:
    """Where a reading stands in a stream: an id, and how many entries were ever added up to it."""

    __slots__ = ("_counted", "id", "seen")

    def __init__(self, given: str) -> None:
        self.id = _full_id(given) if given != "$" else given
        self._counted = self.id  # up to here, entries were counted
        # None: not known, because the server does not count or because we were only given an id.
        self.seen: int | None = 0 if self.id == BEGINNING else None

    @property
    def known(self) -> bool:
        return self.id != "$"

    def settle(self, page: Page) -> None:
        """Takes the end of the stream as its place."""
        self.id, self.seen = page.state.last_id, page.state.added
        self._counted = self.id

    def gap(self, page: Page) -> Gap | None:
        """What is missing between this place and the page that was read after it."""
        state, trimmed = page.state, page.trimmed
        if state.added is not None and self.seen is not None and state.added < self.seen:
            # The stream is younger than our reading: it was deleted, and with it whatever we had not read.
            self.seen = None  # A page that does not reach the end is counted by the next look.
            return Gap(self._counted, state.first_id or state.last_id, None)
        if state.first_id is None and self.seen is None and _is_later(state.last_id, self.id):
            return Gap(self.id, state.last_id, None)  # all that came after us is gone, and nobody had counted
        if state.first_id is None or not _is_later(state.first_id, self.id):
            return self._passed_over(page)
        if trimmed is None or self.seen is None:
            return Gap(self.id, state.first_id, None) if self.id != BEGINNING else None
        missed = trimmed - self.seen
        return Gap(self.id, state.first_id, missed) if missed > 0 else None

    def _passed_over(self, page: Page) -> Gap | None:
        """Entries that were trimmed between two that were handed over: more were added than we have seen."""
        if page.state.added is None or self.seen is None or len(page.entries) >= PAGE:
            return None  # nobody counts, or the next page will tell
        missed = page.state.added - len(page.entries) - self.seen
        if missed <= 0:
            return None
        # Between entries that were handed over, or, where somebody deleted some or all, up to the end of the page.
        last = page.entries[-1][0] if page.entries else page.state.last_id
        return Gap(self._counted, max(last, self.id, key=_parts), missed)

    def advance(self, page: Page) -> None:
        """Moves to the end of a page."""
        self._count(page)
        if page.entries:
            self.id = page.entries[-1][0]
        elif page.state.first_id is None:
            self.id = max(self.id, page.state.last_id, key=_parts)  # Nothing is left to be read up to there.
        if len(page.entries) < PAGE:
            self._counted = self.id  # Of a full page, the next one tells whether any were missing before it.

    def _count(self, page: Page) -> None:
        added, trimmed = page.state.added, page.trimmed
        if added is None or trimmed is None:
            self.seen = None
        elif len(page.entries) < PAGE:
            self.seen = added  # The page reaches the end of the stream.
        elif self.seen is None:
            if page.before is not None:
                self.seen = trimmed + page.before + len(page.entries)
        else:
            # Entries that were trimmed before we came count as passed: the gap has been reported.
            self.seen = max(self.seen, trimmed if _is_later(page.state.first_id or "", self.id) else 0)
            self.seen += len(page.entries)

    def pass_by(self, entries: Sequence[Entry]) -> None:
        """Moves over entries that were handed over; whether any are missing between them, the next page tells."""
        if entries:
            self.id = entries[-1][0]
            if self.seen is not None:
                self.seen += len(entries)


def _event(entry: Entry) -> Event:
    return Event.from_entry(entry[0], entry[1])


def _full_id(given: str) -> str:
    return given if "-" in given else f"{given}-0"


def _is_later(one: str, other: str) -> bool:
    return _parts(one) > _parts(other)


def _parts(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds or 0), int(sequence or 0)
