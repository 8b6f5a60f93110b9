"""Read ahead: events are read as soon as they are added, so that they are not trimmed during a long micro-batch.

Guarantee: what was read ahead is in one plan only, in the order of the stream, and is no more than a copy: if the
driver dies, what Redis still has is read again, and what Redis no longer has is counted as a gap.

BullMQ keeps 10,000 events of a queue. At 1,500 jobs a second that is less than two seconds, and a busy machine can hold
up a Spark job for longer. So the process that plans micro-batches follows the streams meanwhile, and its plans carry
the events with them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from toril.commands.streams import entries
from toril.errors import TorilError
from toril.spark.sources.events import PAGE, events_table
from toril.spark.sources.positions import Position, Stretch, id_parts, read_stream_states
from toril.spark.sources.readers import open_transport
from toril.transport import BlockingTransport

_log = logging.getLogger("toril.pipeline")
_EVERY: Final = 0.1  # seconds; a tenth of the time in which the fastest queue we know loses its first events
_MOST_ROWS: Final = 1_000_000  # some 200 MB; beyond it Redis is the better place
_PAUSE: Final = 1.0  # after an error of the server


@dataclass(slots=True)
class _ReadEvents:
    """The events of one queue in (`since`, `until`], as far as they could be read."""

    key: str
    since: str
    until: str
    pages: list[pa.Table] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(page.num_rows for page in self.pages)


class ReadAhead:
    """Follows streams on a thread and a connection of its own."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._held: dict[str, _ReadEvents] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toril-read-ahead", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def follow(self, transport: BlockingTransport, streams: Mapping[str, str]) -> None:
        """Streams that are new to it are followed from their present end: what lies before is for the executors."""
        new = {queue: key for queue, key in streams.items() if queue not in self._held}
        if not new:
            return
        states = read_stream_states(transport, new)
        with self._lock:
            for queue, key in new.items():
                end = states[queue].last_id if queue in states else "0-0"
                self._held[queue] = _ReadEvents(key, end, end)

    def forget(self, committed: Mapping[str, Position]) -> None:
        """Drops what others have committed: a plan that begins there does not need it."""
        with self._lock:
            for queue, position in committed.items():
                if queue in self._held:
                    _forget(self._held[queue], position.id)

    def cover(self, transport: BlockingTransport, whole: Stretch) -> tuple[Stretch | None, pa.Table | None]:
        """A stretch as what must be read from Redis, and the events after it that are here."""
        with self._lock:
            held = self._held.get(whole.queue)
            if held is None or whole.recreated:
                self._held.pop(whole.queue, None)
                return whole, None
            if id_parts(held.until) < id_parts(whole.end.id):
                self._read(transport, {whole.queue: held})
            _forget(held, whole.start.id)
            return _divided(held, whole)

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with open_transport(self._url) as transport:
                    self._keep_reading(transport)
            except Exception as error:  # whatever it is, events must not go by unread
                _log.warning("reading ahead failed, next try in %g s: %s", _PAUSE, error)
                self._stop.wait(_PAUSE)

    def _keep_reading(self, transport: BlockingTransport) -> None:
        while not self._stop.is_set():
            with self._lock:
                if sum(held.rows for held in self._held.values()) < _MOST_ROWS:
                    self._read(transport, self._held)
            self._stop.wait(_EVERY)

    def _read(self, transport: BlockingTransport, some: Mapping[str, _ReadEvents]) -> None:
        more = dict(some)
        while more:
            replies = transport.run_many([entries(held.key, held.until, "+", PAGE) for held in more.values()])
            more = {
                queue: held
                for (queue, held), page in zip(more.items(), replies, strict=True)
                if _add(queue, held, page)
            }


def _add(queue: str, held: _ReadEvents, page: Any) -> bool:
    """Stores a page. Returns True when there may be another."""
    if isinstance(page, TorilError):
        raise page
    if page:
        held.pages.append(events_table(queue, page))
        held.until = page[-1][0].decode()
    return len(page) == PAGE


def _forget(held: _ReadEvents, start: str) -> None:
    """Events up to the start of a batch are committed: they are not needed again."""
    while held.pages and id_parts(held.pages[0]["id"][-1].as_py()) <= id_parts(start):
        held.since = held.pages.pop(0)["id"][-1].as_py()


def _divided(held: _ReadEvents, whole: Stretch) -> tuple[Stretch | None, pa.Table | None]:
    start, end = id_parts(whole.start.id), id_parts(whole.end.id)
    if id_parts(held.since) >= end or not held.pages:
        return whole, None
    pages = [part for page in held.pages if (part := _within(page, start, end)) is not None]
    before = replace(whole, end=Position(held.since, None)) if start < id_parts(held.since) else None
    return (before, pa.concat_tables(pages)) if pages else (whole, None)


def _within(page: pa.Table, start: tuple[int, int], end: tuple[int, int]) -> pa.Table | None:
    """The events of a page in (`start`, `end`]; most pages lie inside as a whole, or outside."""
    first, last = (id_parts(page["id"][at].as_py()) for at in (0, -1))
    if first > end or last <= start:
        return None
    if start < first and last <= end:
        return page
    ids = [id_parts(one) for one in page["id"].to_pylist()]
    return page.filter(pa.array([start < one <= end for one in ids]))
