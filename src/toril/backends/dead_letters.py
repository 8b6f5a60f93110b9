"""Dead letters of list and stream queues: read, filter, replay, purge, export.

Guarantee: a dead letter is replayed or purged at most once, however often it is asked for; one call adds the job to its
queue and removes its dead letter.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from toril.backends._dead_letter_filter import DeadLetterFilter, parse_filter
from toril.commands import envelopes
from toril.commands.command import Command
from toril.commands.envelopes import DEAD_LETTER_PAGE_BYTES, EnvelopeKeys, RawDeadLetter
from toril.commands.once import Calls
from toril.errors import InvalidOption, MalformedValue
from toril.protocol.envelope import DeadLetter, Envelope
from toril.transport import AsyncTransport

__all__ = ["PAGE", "DeadLetterFilter", "DeadLetters", "parse_filter", "read_dead_letter"]

# Dead letters that are read and moved in one call.
PAGE = 200
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")

# Dead letters to remove: entry id, and the envelope of the new job.
Removals = Sequence[tuple[str, bytes]]
Step = Callable[[EnvelopeKeys, Removals, Calls], Command[int]]


class DeadLetters:
    """The dead letters of one queue."""

    def __init__(self, keys: EnvelopeKeys, transport: AsyncTransport) -> None:
        self._keys = keys
        self._transport = transport

    async def each(
        self, where: DeadLetterFilter | None = None, *, newest_first: bool = False
    ) -> AsyncIterator[DeadLetter]:
        """The dead letters that exist now, oldest first; those that are added meanwhile are left out."""
        async for page in self._pages(newest_first):
            for raw in page:
                letter = read_dead_letter(raw)
                if where is None or where(letter):
                    yield letter

    async def _pages(self, newest_first: bool) -> AsyncIterator[list[RawDeadLetter]]:
        last = await self._transport.run(envelopes.newest_dead_letter_id(self._keys))
        if last is None:
            return
        start, end = (last, "-") if newest_first else ("-", last)
        more = True
        while more:
            call = envelopes.dead_letters(self._keys, start, end, PAGE, newest_first=newest_first)
            page, more = await self._transport.run(call)
            if page:
                start = f"({page[-1].entry_id}"
                yield page

    async def get(self, entry_id: str) -> DeadLetter | None:
        """One dead letter by its entry id."""
        if not _ENTRY_ID.fullmatch(entry_id):
            raise InvalidOption(
                "entry_id", f"{entry_id!r} is not an entry id", 'give one like "1767225600000-0"'
            )
        raw = await self._transport.run(envelopes.dead_letter(self._keys, entry_id))
        return None if raw is None else read_dead_letter(raw)

    async def replay(
        self,
        where: DeadLetterFilter | str | None = None,
        *,
        rate: float | None = None,
        limit: int | None = None,
    ) -> int:
        """Adds the jobs of dead letters to the queue again, with all their attempts; returns how many.

        `where` is a filter, or one entry id. `rate` is jobs per second.
        """
        return await self._move(where, envelopes.replay_dead_letters, rate, limit)

    async def purge(self, where: DeadLetterFilter | str | None = None, *, limit: int | None = None) -> int:
        """Removes dead letters for good: those that match a filter, or one entry id; returns how many."""
        return await self._move(where, _purged, None, limit)

    async def _move(
        self, where: DeadLetterFilter | str | None, step: Step, rate: float | None, limit: int | None
    ) -> int:
        _check(where, rate, limit)
        at_once = PAGE if rate is None else max(1, min(PAGE, int(rate / 10)))
        calls, moved, weight, batch = Calls(self._keys), 0, 0, list[tuple[str, bytes]]()
        async for letter in self._selected(where):
            if limit is not None and moved + len(batch) >= limit:
                break
            batch.append((str(letter.entry_id), _new_envelope(letter)))
            weight += len(batch[-1][1])
            if len(batch) >= at_once or weight >= DEAD_LETTER_PAGE_BYTES:
                moved += await self._transport.run(step(self._keys, batch, calls))
                if rate is not None:
                    await asyncio.sleep(len(batch) / rate)
                weight, batch = 0, []
        return moved + (await self._transport.run(step(self._keys, batch, calls)) if batch else 0)

    async def _selected(self, where: DeadLetterFilter | str | None) -> AsyncIterator[DeadLetter]:
        if not isinstance(where, str):
            async for letter in self.each(where):
                yield letter
        elif (one := await self.get(where)) is not None:
            yield one

    async def export(self, path: str | Path, where: DeadLetterFilter | None = None) -> int:
        """Writes matching dead letters to a file, one JSON object per line; returns how many. None is removed."""
        written = 0
        with Path(path).open("wb") as file:  # noqa: ASYNC230  # in a thread, a cancelled call would leave it open
            async for letter in self.each(where):
                await asyncio.to_thread(file.write, dead_letter_line(letter))
                written += 1
        return written


def dead_letter_line(letter: DeadLetter) -> bytes:
    """A dead letter as it is exported: one line of JSON."""
    return b'{"entry_id":"%s",%s\n' % (str(letter.entry_id).encode(), letter.to_bytes()[1:])


def _check(where: object, rate: object, limit: object) -> None:
    if not (where is None or isinstance(where, str) or callable(where)):
        raise InvalidOption(
            "where", f"is {where!r}", "give a function of a dead letter or an entry id; a number is limit="
        )
    if rate is not None and (
        isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf
    ):
        raise InvalidOption("rate", f"is {rate!r}", "give jobs per second, above zero")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise InvalidOption("limit", f"is {limit!r}", "give a whole number")


def _purged(keys: EnvelopeKeys, removals: Removals, calls: Calls) -> Command[int]:
    return envelopes.purge_dead_letters(keys, [entry_id for entry_id, _ in removals], calls)


def _new_envelope(letter: DeadLetter) -> bytes:
    """The job's envelope with all its attempts; a message that could not be read is returned unchanged."""
    envelope = letter.envelope
    if envelope.task_type == "unreadable":
        raw, exact = envelope.payload.get("raw"), envelope.payload.get("raw_base64")
        try:
            if isinstance(exact, str):
                return base64.b64decode(exact, validate=True)
        except binascii.Error:
            pass  # it was changed
        if isinstance(raw, str):
            return raw.encode("utf-8", "surrogatepass")
    return envelope.fresh().rewritten()


def read_dead_letter(raw: RawDeadLetter) -> DeadLetter:
    """A dead letter; one of another program that cannot be read gets a replacement, so that it can be purged."""
    try:
        return DeadLetter.from_bytes(raw.text, entry_id=raw.entry_id)
    except MalformedValue as error:
        return DeadLetter(
            envelope=Envelope.of_unreadable(raw.text, entry_id=raw.entry_id),
            dlq_ts="1970-01-01T00:00:00Z",
            dlq_reason="validation_error",
            last_error=str(error),
            entry_id=raw.entry_id,
        )
