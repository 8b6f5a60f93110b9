"""Commands for list and stream queues: adding envelopes, dead letters, results, scheduled jobs.

Guarantee: a call that is repeated under its ledger entry adds nothing twice, a dead letter is replayed or purged once,
and returned numbers are exact, also when a reply was lost (`commands/once.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from toril.commands.command import Arg, Command, Replay, Reply, plain
from toril.commands.once import Calls, once
from toril.commands.own_script import OwnScript
from toril.protocol.keys import RETURNED_CONSUMER, ListKeys, StreamKeys

EnvelopeKeys = ListKeys | StreamKeys
SettlementKind = Literal["done", "retry", "later", "again", "dead"]

# Long enough for a producer to reconnect and send a call again; the ledger is one small key per producer.
LEDGER_MS: Final = 120_000
MOST_DIGITS: Final = 20  # of a total: Redis counts in 64 bits
# The size of a page of dead letters: large ones must fill neither the server's memory nor the client's.
DEAD_LETTER_PAGE_BYTES: Final = 4 * 1024 * 1024
# The latest time of Python's datetime, the end of the year 9999; other programs may write later ones.
LATEST_MS: Final = 253_402_300_799_000

_ADD = OwnScript(
    "envelopes_add", keys="jobs scheduled ledger", args="kind sequence ledger_ms", each="due_ms envelope"
)
_DLQ_PAGE = OwnScript("dlq_page", keys="dlq", args="first_id last_id limit max_bytes newest_first")
_DLQ_REPLAY = OwnScript("dlq_replay", keys="dlq jobs totals", args="kind", each="entry_id envelope")
_REMOVE_ALL = OwnScript("remove_all", each_keys="jobs")
_STREAM_DRAIN = OwnScript(
    "stream_drain", keys="stream", args="consumer_group limit max_bytes last_id returned_consumer"
)


@dataclass(frozen=True, slots=True)
class EnvelopeToAdd:
    """The canonical text of an envelope, and when it is due (None: now)."""

    text: bytes
    due_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RawDeadLetter:
    """An entry of a dead-letter queue, not decoded."""

    entry_id: str
    text: bytes


def kind_of(keys: EnvelopeKeys) -> Literal["list", "stream"]:
    """Returns the kind of queue that the keys belong to."""
    return "list" if isinstance(keys, ListKeys) else "stream"


def jobs_key(keys: EnvelopeKeys) -> str:
    """Returns the key of the list or the stream."""
    return keys.queue if isinstance(keys, ListKeys) else keys.stream


def add_envelopes(
    keys: EnvelopeKeys, envelopes: Sequence[EnvelopeToAdd], *, producer: str, sequence: int
) -> Command[int]:
    """Adds a batch in order; returns how many, 0 when this call of this producer had run before."""
    args = _ADD.args(kind=kind_of(keys), sequence=sequence, ledger_ms=LEDGER_MS)
    for one in envelopes:
        args += ("" if one.due_ms is None else one.due_ms, one.text)
    script_keys = _ADD.keys(keys, jobs=jobs_key(keys), ledger=keys.toril(f"ledger:{producer}"))
    return _ADD.call(script_keys, args, int, Replay.SAFE)


# --- dead letters -------------------------------------------------------------------------------------------


def dead_letters(
    keys: EnvelopeKeys, start: str, end: str, count: int, *, newest_first: bool = False
) -> Command[tuple[list[RawDeadLetter], bool]]:
    """Returns a page of dead letters, and whether there may be more; ids as XRANGE takes them."""
    args = _DLQ_PAGE.args(
        first_id=start,
        last_id=end,
        limit=count,
        max_bytes=DEAD_LETTER_PAGE_BYTES,
        newest_first=int(newest_first),
    )
    return _DLQ_PAGE.call(_DLQ_PAGE.keys(keys), args, _page, Replay.SAFE)


def _page(reply: list[Reply]) -> tuple[list[RawDeadLetter], bool]:
    found, more = reply
    return _dead_letters(found), bool(more)


def newest_dead_letter_id(keys: EnvelopeKeys) -> Command[str | None]:
    """Returns the entry id of the newest dead letter."""
    return plain(_first_id, "XREVRANGE", keys.dlq, "+", "-", "COUNT", 1)


def _first_id(reply: list[Reply]) -> str | None:
    return reply[0][0].decode() if reply else None


def dead_letter(keys: EnvelopeKeys, entry_id: str) -> Command[RawDeadLetter | None]:
    """Returns one dead letter by its entry id."""
    return plain(_first_dead_letter, "XRANGE", keys.dlq, entry_id, entry_id)


def _dead_letters(reply: list[Reply]) -> list[RawDeadLetter]:
    return [RawDeadLetter(entry_id.decode(), _text_of(fields)) for entry_id, fields in reply]


def _first_dead_letter(reply: list[Reply]) -> RawDeadLetter | None:
    return next(iter(_dead_letters(reply)), None)


def _text_of(fields: Sequence[bytes]) -> bytes:
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(b"envelope", b"")


def replay_dead_letters(
    keys: EnvelopeKeys, jobs: Sequence[tuple[str, bytes]], calls: Calls | None = None
) -> Command[int]:
    """Adds dead letters (entry id, new envelope) to the queue again; returns how many still existed."""
    return once(keys, _take_dead_letters(keys, kind_of(keys), jobs), calls)


def purge_dead_letters(
    keys: EnvelopeKeys, entry_ids: Sequence[str], calls: Calls | None = None
) -> Command[int]:
    """Removes dead letters; returns how many still existed."""
    return once(keys, _take_dead_letters(keys, "none", [(entry_id, b"") for entry_id in entry_ids]), calls)


def _take_dead_letters(keys: EnvelopeKeys, kind: str, jobs: Sequence[tuple[str, bytes]]) -> Command[int]:
    args = _DLQ_REPLAY.args(kind=kind)
    for entry_id, text in jobs:
        args += (entry_id, text)
    script_keys = _DLQ_REPLAY.keys(keys, jobs=jobs_key(keys), totals=keys.toril("totals"))
    return _DLQ_REPLAY.call(script_keys, args, int)


# --- results ---------------------------------------------------------------------------------------------------


def result_base(keys: EnvelopeKeys) -> str:
    """Returns the start of every result key."""
    return keys.toril("result:")


def result(keys: EnvelopeKeys, job_id: str) -> Command[bytes | None]:
    """Returns the stored result of a job as JSON; None when there is none, or it expired."""
    return plain(_text, "GET", result_base(keys) + job_id)


def _text(reply: bytes | None) -> bytes | None:
    return reply


# --- figures ------------------------------------------------------------------------------------------------


def totals(keys: EnvelopeKeys) -> Command[Mapping[str, int]]:
    """Returns how many jobs ever completed, were retried, became dead letters, stalled, were replayed or trimmed."""
    return plain(decode_totals, "HGETALL", keys.toril("totals"))


def decode_totals(reply: Sequence[bytes]) -> dict[str, int]:
    """Returns the totals of a queue; values that are no numbers are another program's."""
    return {
        name.decode(errors="replace"): int(count)
        for name, count in zip(reply[::2], reply[1::2], strict=True)
        if count.isdigit() and len(count) < MOST_DIGITS
    }


def scheduled(keys: EnvelopeKeys, start: int, stop: int) -> Command[list[tuple[bytes, int]]]:
    """Returns scheduled jobs by rank: text and due time (ms), at most `LATEST_MS`."""
    return plain(_scheduled, "ZRANGE", keys.scheduled, start, stop, "WITHSCORES")


def _scheduled(reply: list[bytes]) -> list[tuple[bytes, int]]:
    return [(text, _due(float(due))) for text, due in zip(reply[::2], reply[1::2], strict=True)]


def _due(score: float) -> int:
    return int(min(max(score, 0.0), LATEST_MS))


def count_due(keys: EnvelopeKeys, now_ms: int) -> Command[int]:
    """Returns the number of scheduled jobs that are due."""
    return plain(int, "ZCOUNT", keys.scheduled, "-inf", now_ms)


def unschedule(keys: EnvelopeKeys, text: bytes, calls: Calls | None = None) -> Command[bool]:
    """Removes one scheduled job; returns False when it was not there."""
    return once(keys, Command(("ZREM", keys.scheduled, text), bool), calls)


def make_due(
    keys: EnvelopeKeys, texts: Sequence[bytes], now_ms: int, calls: Calls | None = None
) -> Command[int]:
    """Makes scheduled jobs due now; returns how many were not."""
    members: list[Arg] = [value for text in texts for value in (now_ms, text)]
    return once(keys, Command(("ZADD", keys.scheduled, "XX", "LT", "CH", *members), int), calls)


# --- removing many -----------------------------------------------------------------------------------------------


def remove_all(keys: EnvelopeKeys, names: Sequence[str]) -> Command[int]:
    """Removes all jobs of lists and sorted sets of the queue at once; returns how many."""
    return once(keys, _REMOVE_ALL.call(names, [], int))


@dataclass(frozen=True, slots=True)
class DrainStep:
    """How many entries one call of a drain removed, and up to which entry the next one goes on."""

    removed: int
    last: str  # empty at the end


def drain_stream(
    keys: StreamKeys, *, most: int, last: str = "", calls: Calls | None = None
) -> Command[DrainStep]:
    """Removes up to `most` of the entries that no worker had fetched when the drain began.

    `last` is from the reply to the call before; without it a drain begins.
    """
    args = _STREAM_DRAIN.args(
        consumer_group=keys.consumer_group,
        limit=most,
        max_bytes=DEAD_LETTER_PAGE_BYTES,
        last_id=last,
        returned_consumer=RETURNED_CONSUMER,
    )
    return once(keys, _STREAM_DRAIN.call(_STREAM_DRAIN.keys(keys), args, _drained), calls)


def _drained(reply: list[Reply]) -> DrainStep:
    return DrainStep(int(reply[0]), reply[1].decode())


def delete_queue(keys: EnvelopeKeys, consumers: Sequence[str] = ()) -> Command[int]:
    """Removes the jobs, scheduled jobs and dead letters of a queue, and the processing lists of `consumers`.

    toril's own keys are left (`read.scan_keys`).
    """
    processing = (keys.processing(one) for one in consumers) if isinstance(keys, ListKeys) else ()
    names = (jobs_key(keys), keys.scheduled, keys.dlq, *processing)
    return once(keys, Command(("UNLINK", *names), int))
