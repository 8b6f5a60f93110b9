"""Reads a queue's event stream from an id on.

Guarantee: events come in order and once; entries that were trimmed before they were read are reported as a `Gap`, never
skipped silently; after a lost connection reading goes on at the same position, with growing delays between attempts,
and ends with the last error when the policy sets a limit.

A blocking read (XREAD) returns new entries at once and costs little, but does not report trimmed entries. So a reader
that keeps up blocks again at once. It reads a page with the stream's counters (`follow`) when it was away for a moment,
when a page was full, every second while entries come, and when none have come for a moment. Entries that are missing
among those of blocking reads are reported as a `Gap`, too.
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
from toril.protocol.codecs import QueueCodecs
from toril.protocol.event import Event, RetryDeriver
from toril.protocol.keys import QueueKeys, client_name
from toril.transport import AsyncTransport, Reader
from toril.transport.waiting import Closing, waited

logger = logging.getLogger("toril.events")

PAGE: Final = 500  # entries in one reply: some 100 kB, a few milliseconds to decode
BLOCK_SECONDS: Final = 10.0  # as long as Node's; a dead connection is noticed after it
BEGINNING: Final = "0-0"
COUNT_SECONDS: Final = 1.0  # how long blocking reads may go on without reading the counters
PROMPT_SECONDS: Final = 0.02  # a consumer that asks for more within it keeps up
SETTLE_SECONDS: Final = (
    0.05  # the first blocking read without counters is this short: silence must not hide a gap
)
_UNBLOCK_SECONDS: Final = 1.0  # a server that does not reply within it is unreachable


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing: they were trimmed, or the stream was deleted, before they could be read.

    An application that derives state from events should read the jobs themselves now.
    """

    after: str  # the last event that is known to be before the gap
    id: str  # its end: an event after it, or the last missing one if there is none yet
    missed: int | None  # how many are missing; None when it is not known

    type: str = "gap"  # so that gaps and events can be handled alike
    job_id: str | None = None


class EventStream:
    """Reads one queue's events after `after`: an id, `0` for all that is left, `$` for new ones only."""

    def __init__(
        self,
        transport: AsyncTransport,
        keys: QueueKeys,
        after: str = "$",
        *,
        block: float = BLOCK_SECONDS,
        derive_retries: bool = True,
        codecs: QueueCodecs | None = None,
    ) -> None:
        self._transport = transport
        self._codecs = codecs
        self._keys = keys
        self._block = block
        self._position = Position(after)
        self._deriver = RetryDeriver() if derive_retries else None
        self._caught_up = False
        self._counted_at = self._read_at = (
            0.0  # of the last `follow`, and of the last blocking read with entries
        )
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
        """The last id that was read: another stream that is given it goes on from here."""
        return self._position.id

    async def open(self) -> None:
        """Finds its position: from here on nothing is missed. Raises when the server cannot be reached."""
        if not self._position.known:
            page = await self._transport.run(follow(self._keys.events, BEGINNING, 0))
            self._position.move_to_end(page)

    async def next_batch(self) -> Sequence[Event | Gap]:
        """Returns events, waiting for new ones; empty when none came in time, or after `close`."""
        while not self._end.is_set():
            try:
                batch = await self._next()
            except RedisUnavailable as error:
                await self._wait_to_reconnect(error)
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
            self._caught_up = False  # The next entry may be the first of many.
            return self._derived(await self._wait(block))
        batch = self._with_gap(await self._count())
        if not batch:
            self._caught_up = True
            # No event follows that would explain a return to waiting.
            return list(self._deriver.flush()) if self._deriver is not None else ()
        return batch

    def _keeps_up(self) -> bool:
        """Returns whether a blocking read may follow at once: entries were just read, and counted not long ago."""
        if self._deriver is not None and self._deriver.holds:
            return False  # only `follow` shows whether more entries exist
        now = time.monotonic()
        return now - self._read_at < PROMPT_SECONDS and now - self._counted_at < COUNT_SECONDS

    async def _count(self) -> Page:
        self._counted_at, self._read_at = time.monotonic(), 0.0
        count_before = self._position.seen is None
        return await self._transport.run(
            follow(self._keys.events, self.last_id, PAGE, count_before=count_before)
        )

    def _with_gap(self, page: Page) -> list[Event | Gap]:
        gap = self._position.gap(page)
        events = [Event.from_entry(*entry, self._codecs) for entry in page.entries]
        self._position.advance(page)
        return [gap, *self._derived(events)] if gap is not None else list(self._derived(events))

    async def _wait(self, block: float) -> list[Event]:
        """Blocks for new entries."""
        reader = await self._opened_reader()
        command = read_events([self._keys], [self.last_id], block_ms=int(block * 1000), count=PAGE)
        self._idle.clear()
        try:
            entries = (await reader.run(command, block)).get(self._keys.events, [])
        finally:
            self._idle.set()
        self._position.advance_over(entries)
        self._read_at = time.monotonic() if 0 < len(entries) < PAGE else 0.0
        return [Event.from_entry(*entry, self._codecs) for entry in entries]

    def _derived(self, events: Sequence[Event]) -> Sequence[Event]:
        return events if self._deriver is None else list(self._deriver.feed(events))

    async def _opened_reader(self) -> Reader:
        if self._end.is_set():
            raise Closed("the event stream was closed; make a new QueueEvents")
        if self._reader is None:
            name = client_name(self._keys, "events")
            self._reader = await self._resources.enter_async_context(self._transport.reader(name=name))
        return self._reader

    async def _wait_to_reconnect(self, error: RedisUnavailable) -> None:
        policy = self._transport.policy
        if 0 < policy.max_reconnect_attempts <= self._attempt:
            logger.error(
                "events of %s: Redis is unreachable after %d attempts", self._keys.name, self._attempt
            )
            raise error
        delay = policy.delay_before(self._attempt)
        self._attempt += 1
        logger.warning("events of %s: %s; next attempt in %.1f s", self._keys.name, error, delay)
        self._caught_up, self._read_at = False, 0.0
        await waited(delay, self._end)

    async def close(self) -> None:
        """Ends reading; a waiting `next_batch` returns an empty batch."""
        self._end.set()
        await self._closing.finish()

    async def _shut(self) -> None:
        # A reader that still connects has sent nothing: closing it ends the wait.
        if self._reader is not None and self._reader.blocked:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UNBLOCK_SECONDS):
                    await self._reader.unblock()
                    await self._idle.wait()
        await self._resources.aclose()


class Position:
    """A position in a stream: an id, and how many entries were ever added up to it."""

    __slots__ = ("_counted", "id", "seen")

    def __init__(self, given: str) -> None:
        self.id = _full_id(given) if given != "$" else given
        self._counted = self.id  # entries are counted up to here
        # None: not known, because the server does not count or only an id was given.
        self.seen: int | None = 0 if self.id == BEGINNING else None

    @property
    def known(self) -> bool:
        return self.id != "$"

    def move_to_end(self, page: Page) -> None:
        """Moves to the end of the stream."""
        self.id, self.seen = page.state.last_id, page.state.added
        self._counted = self.id

    def gap(self, page: Page) -> Gap | None:
        """Returns what is missing between this position and the page that was read after it."""
        state, trimmed = page.state, page.trimmed
        if state.added is not None and self.seen is not None and state.added < self.seen:
            # The stream is younger than this position: it was deleted, with entries that had not been read.
            self.seen = None  # A page that does not reach the end is counted with the next one.
            return Gap(self._counted, state.first_id or state.last_id, None)
        if state.first_id is None and self.seen is None and _is_later(state.last_id, self.id):
            return Gap(self.id, state.last_id, None)  # all later entries are gone, and were not counted
        if state.first_id is None or not _is_later(state.first_id, self.id):
            return self._missing_between(page)
        if trimmed is None or self.seen is None:
            return Gap(self.id, state.first_id, None) if self.id != BEGINNING else None
        missed = trimmed - self.seen
        return Gap(self.id, state.first_id, missed) if missed > 0 else None

    def _missing_between(self, page: Page) -> Gap | None:
        """Returns entries that were trimmed between two blocking reads: more were added than were read."""
        if page.state.added is None or self.seen is None or len(page.entries) >= PAGE:
            return None  # the server does not count, or the next page shows it
        missed = page.state.added - len(page.entries) - self.seen
        if missed <= 0:
            return None
        # Between entries of blocking reads, or, where entries were deleted, up to the end of the page.
        last = page.entries[-1][0] if page.entries else page.state.last_id
        return Gap(self._counted, max(last, self.id, key=_parts), missed)

    def advance(self, page: Page) -> None:
        """Moves to the end of a page."""
        self._update_seen(page)
        if page.entries:
            self.id = page.entries[-1][0]
        elif page.state.first_id is None:
            self.id = max(self.id, page.state.last_id, key=_parts)  # Nothing is left up to there.
        if len(page.entries) < PAGE:
            self._counted = (
                self.id
            )  # After a full page, the next one shows whether any were missing before it.

    def _update_seen(self, page: Page) -> None:
        added, trimmed = page.state.added, page.trimmed
        if added is None or trimmed is None:
            self.seen = None
        elif len(page.entries) < PAGE:
            self.seen = added  # The page reaches the end of the stream.
        elif self.seen is None:
            if page.before is not None:
                self.seen = trimmed + page.before + len(page.entries)
        else:
            # Entries that were trimmed before count as read: the gap has been reported.
            self.seen = max(self.seen, trimmed if _is_later(page.state.first_id or "", self.id) else 0)
            self.seen += len(page.entries)

    def advance_over(self, entries: Sequence[Entry]) -> None:
        """Moves over entries of a blocking read; the next page shows whether any are missing between them."""
        if entries:
            self.id = entries[-1][0]
            if self.seen is not None:
                self.seen += len(entries)


def _full_id(given: str) -> str:
    return given if "-" in given else f"{given}-0"


def _is_later(one: str, other: str) -> bool:
    return _parts(one) > _parts(other)


def _parts(entry_id: str) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition("-")
    return int(milliseconds or 0), int(sequence or 0)
