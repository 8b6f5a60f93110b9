"""Sending rows: in batches, under the ledger, as fast as the queue and the rate allow.

Guarantee: when `send` returns, every row given before is a job, was one already, or is among the rejects.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

import pyarrow as pa

from toril.commands.bulk_enqueue import (
    Admission,
    Admitted,
    KnownDifferently,
    Moved,
    Reject,
    Row,
    Wait,
    enqueue_once,
)
from toril.commands.envelopes import EnvelopeToAdd
from toril.commands.manage import set_meta
from toril.commands.once import Calls, once
from toril.errors import QueueStaysFull, RedisOutOfMemory, RunChanged, TorilError
from toril.protocol.keys import AnyKeys, QueueKeys
from toril.spark.sinks._rows import WITHOUT_QUEUE, RowReader
from toril.spark.sinks.options import SinkOptions
from toril.transport import BlockingTransport

# One call may carry large rows: this many bytes at most hold the server for some tens of milliseconds.
_MOST_BYTES = 4 * 1024 * 1024
_SAMPLES = 5


@dataclass(slots=True)
class Tally:
    """What became of the rows of a task or a whole write."""

    added: int = 0
    known: int = 0  # were added by an earlier attempt of the same run
    rejected: int = 0
    skipped: int = 0  # acts on jobs that are gone or no longer in the state
    reasons: list[str] = field(default_factory=list)
    queues: set[str] = field(default_factory=set)

    def reject(self, reason: str) -> None:
        self.rejected += 1
        if len(self.reasons) < _SAMPLES:
            self.reasons.append(reason)

    def plus(self, other: Tally) -> Tally:
        return Tally(
            added=self.added + other.added,
            known=self.known + other.known,
            rejected=self.rejected + other.rejected,
            skipped=self.skipped + other.skipped,
            reasons=(self.reasons + other.reasons)[:_SAMPLES],
            queues=self.queues | other.queues,
        )

    @property
    def operations_text(self) -> str:
        """The same counts, named for operations on jobs."""
        words = f"{self.added} done, {self.skipped} skipped, {self.rejected} rejected"
        return f"{words}: {'; '.join(self.reasons)}" if self.reasons else words

    def __str__(self) -> str:
        words = f"{self.added} added, {self.known} known, {self.rejected} rejected, {self.skipped} skipped"
        return f"{words}: {'; '.join(self.reasons)}" if self.reasons else words


@dataclass(slots=True)
class Sender:
    """Sends the rows of one task."""

    transport: BlockingTransport
    options: SinkOptions
    admission: Admission
    tally: Tally = field(default_factory=Tally)
    _calls: dict[str, Calls] = field(default_factory=dict)  # by queue

    def send_all(self, batches: Iterable[pa.RecordBatch], reader: RowReader) -> Tally:
        for batch in batches:
            by_queue: dict[str, list[Row]] = defaultdict(list)
            for one in reader.read(batch):
                by_queue[one.queue].append(one.row)
            for queue, rows in by_queue.items():
                for portion in _split_by_size(rows, self.options.rows_per_call):
                    self.send(queue, portion)
        return self.tally

    def send(self, queue: str, rows: list[Row]) -> None:
        keys = self.options.keys(queue, cluster=self.transport.is_cluster)
        if queue not in self.tally.queues and isinstance(keys, QueueKeys) and queue != WITHOUT_QUEUE:
            # As every producer does: Node looks for it.
            self.transport.run_many(set_meta(keys))
        self.tally.queues.add(queue)
        deadline = time.monotonic() + self.options.wait_timeout
        while rows:
            done = self._send_rows(queue, keys, rows, deadline)
            if done:
                rows, deadline = rows[done:], time.monotonic() + self.options.wait_timeout

    def _send_rows(self, queue: str, keys: AnyKeys, rows: list[Row], deadline: float) -> int:
        """Sends rows. Returns how many of them, from the first on, are done; 0 after a pause."""
        calls = self._calls.setdefault(queue, Calls(keys))
        match self.transport.run(once(keys, enqueue_once(keys, rows, self.admission), calls)):
            case Admitted(results):
                self._count(rows[: len(results)], results)
                return len(results)
            case Wait(ms, waiting):
                if waiting is not None and time.monotonic() > deadline:
                    raise QueueStaysFull(queue, waiting, self.options.wait_timeout)
                time.sleep(ms / 1000)
                return 0
            case Moved(partition):
                raise RunChanged.moved(self.admission.run, self.admission.partition, partition)
            case KnownDifferently(before):
                raise RunChanged.known_otherwise(self.admission.run, self.admission.known_by, before)
            case other:
                assert_never(other)

    def _count(self, rows: list[Row], results: list[bool | TorilError]) -> None:
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, TorilError):
                self._refused(result)
            elif isinstance(row.job, Reject):
                self.tally.reject(row.job.reason)
            elif result:
                self.tally.added += 1
            else:
                self.tally.known += 1

    def _refused(self, error: TorilError) -> None:
        # A server without memory will have some again: the task fails, Spark repeats it, the ledger knows the rest.
        if isinstance(error, RedisOutOfMemory) or "OOM" in str(error):
            raise RedisOutOfMemory(str(error))
        self.tally.reject(str(error))


def _split_by_size(rows: list[Row], size: int) -> Iterator[list[Row]]:
    portion: list[Row] = []
    weight = 0
    for row in rows:
        portion.append(row)
        weight += _weight(row)
        if len(portion) >= size or weight > _MOST_BYTES:
            yield portion
            portion, weight = [], 0
    if portion:
        yield portion


def _weight(row: Row) -> int:
    match row.job:
        case Reject(_, text) | EnvelopeToAdd(text, _):
            return len(text)
        case job:
            return len(job.data)
