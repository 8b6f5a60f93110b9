"""Finds the queues of a source.

Guarantee: names are taken as given and cost nothing; patterns are resolved by SCAN at most once in
`discover_every` seconds, never per batch.
"""

from __future__ import annotations

import fnmatch
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from toril.commands.bulk_enqueue import rejects_key
from toril.commands.command import plain
from toril.errors import InvalidOption, QueueMissing, TorilError
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.protocol.printable import one_line
from toril.spark.sources.options import SourceOptions, is_pattern
from toril.transport import BlockingTransport
from toril.transport.discovery import AnyKeys, QueueKind, QueueSearch, blocking_search

logger = logging.getLogger("toril.spark")

T = TypeVar("T")

_SHARE: Final = 20  # of the time at most one part is spent searching: there may be millions of keys
# Ends of keys by which a queue is found; other keys of a list or stream queue may outlive its jobs.
_KEYS_OF_QUEUES: Final = ("", ":meta", ":dlq", ":scheduled", ":toril:rejects")


def keys_of(options: SourceOptions, queue: str, *, cluster: bool) -> AnyKeys:
    """The keys of one queue of the kind that the table is about."""
    if options.kind == "bullmq":
        return QueueKeys(queue, options.prefix).resolve(cluster=cluster)
    kind = ListKeys if options.kind == "list" else StreamKeys
    return kind(queue, options.prefix, options.env, cluster)


@dataclass(slots=True)
class QueueSelection:
    """The queues that match the options, kept between batches."""

    options: SourceOptions
    _found: dict[str, AnyKeys] = field(default_factory=dict)
    _searched_at: float | None = None
    _search_took: float = 0.0
    _undecodable: set[str] = field(default_factory=set)  # queues whose key is no UTF-8 text

    def queues(self, transport: BlockingTransport) -> dict[str, AnyKeys]:
        """Queue → keys. Queues once found stay, so that their offsets are kept."""
        for queue in self.options.queues:
            if not is_pattern(queue):
                self._found.setdefault(queue, keys_of(self.options, queue, cluster=transport.is_cluster))
        if self.options.has_pattern and self._is_due():
            began = time.monotonic()
            found = {queue: keys for queue, keys in self._search(transport) if queue not in self._found}
            mistyped = _mistyped(transport, found)
            self._found.update({queue: keys for queue, keys in found.items() if queue not in mistyped})
            _report_left_out("their keys are no UTF-8 text", self._undecodable)
            _report_left_out("their keys hold other types than those of a queue", mistyped)
            self._searched_at = time.monotonic()
            self._search_took = self._searched_at - began
        return dict(sorted(self._found.items()))

    def existing(self, transport: BlockingTransport) -> dict[str, AnyKeys]:
        """The queues that exist now; a named one that does not is an error unless `missing` is "ignore"."""
        queues = self.queues(transport)
        replies = transport.run_many([plain(int, "EXISTS", *mark_keys(keys)) for keys in queues.values()])
        there = {queue for queue, found in zip(queues, replies, strict=True) if _raised(found)}
        absent = [queue for queue in queues if queue not in there]
        if self.options.missing != "ignore" and (absent or not queues):
            wanted = absent or list(self.options.queues)
            raise QueueMissing(wanted, transport.address.label, self.options.prefix)
        return {queue: keys for queue, keys in queues.items() if queue in there}

    def includes(self, queue: str) -> bool:
        """Whether a name is one of those asked for, or matches a pattern."""
        return any(fnmatch.fnmatchcase(queue, wanted) for wanted in self.options.queues)

    def unmatched(self, transport: BlockingTransport) -> list[str]:
        """The names and patterns for which there is no queue now."""
        queues = self.queues(transport)
        replies = transport.run_many([plain(int, "EXISTS", *mark_keys(keys)) for keys in queues.values()])
        there = [queue for queue, found in zip(queues, replies, strict=True) if _raised(found)]
        return [
            wanted
            for wanted in self.options.queues
            if not any(fnmatch.fnmatchcase(queue, wanted) for queue in there)
        ]

    def _is_due(self) -> bool:
        waited = max(self.options.discover_every, _SHARE * self._search_took)
        return self._searched_at is None or time.monotonic() - self._searched_at >= waited

    def _search(self, transport: BlockingTransport) -> Iterator[tuple[str, AnyKeys]]:
        patterns = [queue for queue in self.options.queues if is_pattern(queue)]
        kind = cast("QueueKind", self.options.kind)
        search = QueueSearch(kind=kind, prefix=self.options.prefix, env=self.options.env)
        for queue, rest in blocking_search(transport, search):
            if queue.undecodable:
                self._undecodable.add(str(queue))
            elif rest in _KEYS_OF_QUEUES and any(fnmatch.fnmatchcase(queue.name, one) for one in patterns):
                yield queue.name, queue.keys


def _mistyped(transport: BlockingTransport, found: Mapping[str, AnyKeys]) -> set[str]:
    """The queues with a key of another type, as another program may have made it: reading them would fail."""
    asked = [(queue, key, kind) for queue, keys in found.items() for key, kind in _types(keys).items()]
    replies = transport.run_many([plain(_text, "TYPE", key) for _, key, _ in asked])
    return {
        queue
        for (queue, _, kind), reply in zip(asked, replies, strict=True)
        if _raised(reply) not in (kind, "none")
    }


def _types(keys: AnyKeys) -> dict[str, str]:
    """The types of the keys from which a queue is read."""
    if isinstance(keys, QueueKeys):
        lists = (keys.wait, keys.paused, keys.active)
        sets = (keys.prioritized, keys.delayed, keys.completed, keys.failed, keys.waiting_children)
        return {keys.events: "stream", **dict.fromkeys(lists, "list"), **dict.fromkeys(sets, "zset")}
    if isinstance(keys, ListKeys):
        return {keys.queue: "list", keys.dlq: "stream", keys.scheduled: "zset"}
    return {keys.stream: "stream", keys.dlq: "stream", keys.scheduled: "zset"}


def _report_left_out(reason: str, queues: set[str]) -> None:
    if queues:
        some = ", ".join(sorted(map(one_line, queues))[:3])
        logger.warning("%d queues are left out, %s: %s", len(queues), reason, some)


def mark_keys(keys: AnyKeys) -> tuple[str, ...]:
    """Keys of which at least one exists when the queue does."""
    if isinstance(keys, QueueKeys):
        return keys.meta, keys.events, rejects_key(keys)
    return keys.base, keys.dlq, keys.scheduled, rejects_key(keys)


def _raised(reply: T | TorilError) -> T:
    if isinstance(reply, TorilError):
        raise reply
    return reply


def _text(reply: bytes) -> str:
    return reply.decode()


def check_named(options: SourceOptions) -> None:
    """Refuses names that could never be queues."""
    for queue in options.queues:
        if not is_pattern(queue):
            keys_of(options, queue, cluster=False)
        elif ":" in queue:
            raise InvalidOption("queues", f'{queue!r} contains ":"', "patterns match queue names, not keys")
