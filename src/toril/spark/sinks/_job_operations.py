"""Operations on jobs that a query selected: retry, remove, replay.

Guarantee: an operation on a job that is gone, or no longer in the state, does nothing and is counted as skipped. So
a write can be repeated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import pyarrow as pa

from toril.commands.command import Command
from toril.commands.envelopes import RawDeadLetter, dead_letter, purge_dead_letters, replay_dead_letters
from toril.commands.manage import remove, reprocess
from toril.commands.once import Calls
from toril.errors import InvalidOption, JobNotFound, JobNotInState, TorilError
from toril.protocol.envelope import DeadLetter
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.spark.sinks._sender import Tally
from toril.spark.sinks.options import SinkOptions
from toril.transport import BlockingTransport


@dataclass(slots=True)
class JobOperator:
    """Runs the operations of one task."""

    transport: BlockingTransport
    options: SinkOptions
    tally: Tally = field(default_factory=Tally)

    def act_all(self, batches: Iterable[pa.RecordBatch]) -> Tally:
        for batch in batches:
            by_queue: dict[str, list[str]] = defaultdict(list)
            for row in batch.to_pylist():
                self._sort_in(row, by_queue)
            for queue, ids in by_queue.items():
                for start in range(0, len(ids), self.options.batch):
                    self._apply_to_jobs(queue, ids[start : start + self.options.batch])
        return self.tally

    def _sort_in(self, row: dict[str, object], by_queue: dict[str, list[str]]) -> None:
        column = "job_id" if self.options.kind == "bullmq" else "id"
        queue, name = self.options.queue or row.get("queue"), row.get(column)
        if queue and name:
            by_queue[str(queue)].append(str(name))
            return
        problem = f"row without {'queue' if name else column}: {row!r:.200}"
        if self.options.on_reject == "fail":
            raise InvalidOption("row", problem, "select the columns that name a job")
        self.tally.reject(problem)

    def _apply_to_jobs(self, queue: str, ids: Sequence[str]) -> None:
        keys = self.options.keys(queue, cluster=self.transport.is_cluster)
        self.tally.queues.add(queue)
        if isinstance(keys, QueueKeys):
            self._act_on_jobs(keys, ids)
        else:
            self._act_on_dead_letters(keys, ids)

    def _act_on_jobs(self, keys: QueueKeys, ids: Sequence[str]) -> None:
        state = cast("Literal['failed', 'completed']", self.options.state)
        calls = Calls(keys, at_once=len(ids))
        commands: list[Command[None]] = [
            reprocess(keys, one, state=state, calls=calls)
            if self.options.op == "retry"
            else remove(keys, one)
            for one in ids
        ]
        for result in self.transport.run_many(commands):
            if isinstance(result, (JobNotFound, JobNotInState)):
                self.tally.skipped += 1
            elif isinstance(result, TorilError):
                self.tally.reject(str(result))
            else:
                self.tally.added += 1

    def _act_on_dead_letters(self, keys: ListKeys | StreamKeys, ids: Sequence[str]) -> None:
        if self.options.op == "remove":
            moved = self.transport.run(purge_dead_letters(keys, ids))
        else:
            found = [
                one
                for one in self.transport.run_many([dead_letter(keys, one) for one in ids])
                if one is not None
            ]
            replayed = [pair for one in found if (pair := self._replayed(one)) is not None]
            moved = self.transport.run(replay_dead_letters(keys, replayed)) if replayed else 0
        self.tally.added += moved
        self.tally.skipped += len(ids) - moved

    def _replayed(self, found: RawDeadLetter | TorilError) -> tuple[str, bytes] | None:
        if isinstance(found, TorilError):
            raise found
        try:
            dead = DeadLetter.from_bytes(found.text, entry_id=found.entry_id)
        except TorilError as error:
            self.tally.reject(f"{found.entry_id}: {error}")
            return None
        return found.entry_id, dead.envelope.fresh().to_bytes()
