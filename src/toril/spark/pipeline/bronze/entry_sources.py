"""Which streams and lists hold entries that the tables do not have.

Guarantee: nothing is read but lengths and last ids, and pyarrow is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from toril.commands.command import plain
from toril.lake.marked_log import MarkedLog
from toril.protocol.keys import ListKeys, StreamKeys
from toril.spark.pipeline.bronze.stream_positions import unpacked_id
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.positions import id_parts, read_stream_states
from toril.transport import BlockingTransport

APPLICATION: Final = "toril.entries"
LIVE, DEAD = "bronze/stream_entries", "bronze/dlq_entries"
_ORIGIN: Final = "0-0"
OpenLog = Callable[[str], MarkedLog]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrySource:
    """One stream or list, and how much of it is new."""

    table: str
    kind: str  # stream | list
    queue: str
    key: str
    after: str = _ORIGIN
    until: str = ""  # empty: a list, which has no ids

    @property
    def mark(self) -> str:
        return f"{APPLICATION}/{self.kind}/{self.queue}"


def new_sources(
    transport: BlockingTransport, directories: Mapping[str, QueueSelection], open_log: OpenLog
) -> Iterator[EntrySource]:
    """The streams whose marks are behind, and all lists that are not empty: their elements have no ids."""
    for kind, directory in directories.items():
        streams: list[EntrySource] = []
        for queue, keys in directory.queues(transport).items():
            if isinstance(keys, ListKeys | StreamKeys):
                streams.append(EntrySource(table=DEAD, kind=kind, queue=queue, key=keys.dlq))
            if isinstance(keys, StreamKeys):
                streams.append(EntrySource(table=LIVE, kind=kind, queue=queue, key=keys.stream))
            elif isinstance(keys, ListKeys) and transport.run(plain(int, "LLEN", keys.queue)):
                yield EntrySource(table=LIVE, kind=kind, queue=queue, key=keys.queue)
        yield from _new_streams(transport, {one.key: one for one in streams}, open_log)


def _new_streams(
    transport: BlockingTransport, streams: Mapping[str, EntrySource], open_log: OpenLog
) -> Iterator[EntrySource]:
    for key, state in read_stream_states(transport, {key: key for key in streams}).items():
        source = _with_range(streams[key], state.last_id, open_log)
        if state.length and source.until != source.after:
            yield source


def _with_range(source: EntrySource, last_id: str, open_log: OpenLog) -> EntrySource:
    packed = open_log(source.table).committed(source.mark)
    after = unpacked_id(packed) if packed >= 0 else _ORIGIN
    if id_parts(last_id) < id_parts(after):  # the stream was deleted and began anew
        after = _ORIGIN
    return replace(source, after=after, until=last_id)
