"""Dead letters of list and stream queues: read, filter, replay, purge, export.

Guarantee: a letter is replayed or purged at most once, whoever asks and how often; a replayed job is in its queue
before its letter is gone, in the same call.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from toril.commands import envelopes
from toril.commands._command import Command
from toril.commands.envelopes import EnvelopeKeys, RawLetter
from toril.contract.codec import to_json
from toril.contract.envelope import DeadLetter, Envelope
from toril.contract.errors import InvalidOption, MalformedValue
from toril.store import AsyncStore

LetterFilter = Callable[[DeadLetter], bool]

# Letters read and moved in one call.
PAGE = 200
_TERM = re.compile(r"\s*([a-z_.]+)\s*(!=|=|~)\s*(.*?)\s*")
_FIELDS = ("job_id", "task_type", "dlq_reason", "last_error", "dlq_ts", "entry_id", "user_id", "source")


def parse_filter(text: str) -> LetterFilter:
    """A filter from words, as the command line takes it: `dlq_reason=permanent_error,last_error~timeout`.

    `=` is equal, `!=` is not equal, `~` is contains; terms are separated by commas and must all hold. Fields:
    job_id, task_type, dlq_reason, last_error, dlq_ts, entry_id, user_id, source, and payload.NAME.
    """
    terms = [_term(part) for part in text.split(",") if part.strip()]
    if not terms:
        raise InvalidOption("filter", "is empty", "write FIELD=VALUE, e.g. dlq_reason=permanent_error")
    return lambda letter: all(term(letter) for term in terms)


def _term(text: str) -> LetterFilter:
    match = _TERM.fullmatch(text)
    if match is None or not (match[1] in _FIELDS or match[1].startswith("payload.")):
        raise InvalidOption(
            "filter", f"{text.strip()!r} is not a term", f"write FIELD=VALUE; fields: {', '.join(_FIELDS)}"
        )
    name, sign, wanted = match.groups()
    if sign == "~":
        return lambda letter: wanted in _value(letter, name)
    return lambda letter: (_value(letter, name) == wanted) is (sign == "=")


def _value(letter: DeadLetter, name: str) -> str:
    if name.startswith("payload."):
        return str(letter.envelope.payload.get(name.removeprefix("payload."), ""))
    owner = letter.envelope.meta if name in ("user_id", "source") else letter
    return str(getattr(owner, name) or "")


class DeadLetters:
    """The dead letters of one queue."""

    def __init__(self, keys: EnvelopeKeys, store: AsyncStore) -> None:
        self._keys = keys
        self._store = store

    async def each(self, where: LetterFilter | None = None) -> AsyncIterator[DeadLetter]:
        """The letters there are now, oldest first; those that arrive meanwhile are left for the next time."""
        async for page in self._pages():
            for raw in page:
                letter = read_letter(raw)
                if where is None or where(letter):
                    yield letter

    async def _pages(self) -> AsyncIterator[list[RawLetter]]:
        until = await self._store.run(envelopes.last_letter_id(self._keys))
        after = "-"
        while until is not None:
            page = await self._store.run(envelopes.letters(self._keys, after, until, PAGE))
            if page:
                yield page
                after = page[-1].entry_id
            if len(page) < PAGE:
                return

    async def get(self, entry_id: str) -> DeadLetter | None:
        """One letter by its entry id."""
        raw = await self._store.run(envelopes.letter(self._keys, entry_id))
        return None if raw is None else read_letter(raw)

    async def replay(
        self, where: LetterFilter | None = None, *, rate: float | None = None, limit: int | None = None
    ) -> int:
        """Gives matching jobs another life with all their attempts; how many. `rate` is jobs per second."""
        return await self._move(where, _replayed, rate, limit)

    async def purge(self, where: LetterFilter | None = None, *, limit: int | None = None) -> int:
        """Removes matching letters for good; how many."""
        return await self._move(where, _purged, None, limit)

    async def _move(
        self,
        where: LetterFilter | None,
        step: Callable[[EnvelopeKeys, Sequence[DeadLetter]], Command[int]],
        rate: float | None,
        limit: int | None,
    ) -> int:
        if rate is not None and not rate > 0:
            raise InvalidOption("rate", f"is {rate}", "give jobs per second, above zero")
        at_once = PAGE if rate is None else max(1, min(PAGE, int(rate / 10)))
        moved, batch = 0, list[DeadLetter]()
        async for letter in self.each(where):
            if limit is not None and moved + len(batch) >= limit:
                break
            batch.append(letter)
            if len(batch) >= at_once:
                moved += await self._flush(batch, step, rate)
                batch = []
        return moved + (await self._flush(batch, step, None) if batch else 0)

    async def _flush(
        self,
        batch: Sequence[DeadLetter],
        step: Callable[[EnvelopeKeys, Sequence[DeadLetter]], Command[int]],
        rate: float | None,
    ) -> int:
        moved = await self._store.run(step(self._keys, batch))
        if rate is not None:
            await asyncio.sleep(len(batch) / rate)
        return moved

    async def export(self, path: str | Path, where: LetterFilter | None = None) -> int:
        """Writes matching letters to a file, one JSON object in a line; how many. The letters stay."""
        target = Path(path)
        lines = [
            to_json({"entry_id": one.entry_id, **one.as_dict()}) + b"\n" async for one in self.each(where)
        ]
        await asyncio.to_thread(target.write_bytes, b"".join(lines))
        return len(lines)


def _replayed(keys: EnvelopeKeys, letters: Sequence[DeadLetter]) -> Command[int]:
    return envelopes.replay_letters(keys, [(str(one.entry_id), _new_life(one)) for one in letters])


def _purged(keys: EnvelopeKeys, letters: Sequence[DeadLetter]) -> Command[int]:
    return envelopes.purge_letters(keys, [str(one.entry_id) for one in letters])


def _new_life(letter: DeadLetter) -> bytes:
    """The job's envelope with all its attempts; a message that could not be read goes back as it came."""
    envelope = letter.envelope
    if envelope.task_type == "unreadable" and isinstance(envelope.payload.get("raw"), str):
        return str(envelope.payload["raw"]).encode()
    return envelope.fresh().to_bytes()


def read_letter(raw: RawLetter) -> DeadLetter:
    """A dead letter; one that somebody else wrote and that cannot be read gets a stand-in, so that it can be purged."""
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
