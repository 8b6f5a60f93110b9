"""`op=settle`: rows with the outcome of jobs that were taken as rows.

Guarantee: a job is settled once, however often its row is written: the lock by which it was taken ends with it. A row
whose lock is lost is counted, and can be read with table=rejects. A row that has no result in JSON fails its job.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from toril.backends.base import FinishedJob
from toril.backends.blocking import SETTLED_PER_CALL, BlockingBackend, outcome_of
from toril.backends.bullmq import BullmqDelivery
from toril.commands import read
from toril.commands.bulk_enqueue import rejects_key
from toril.commands.command import plain
from toril.commands.leases import was_given_back
from toril.errors import (
    FailedChildren,
    InvalidOption,
    JobNotFound,
    JobNotInState,
    LockLost,
    PendingChildren,
    PermanentError,
    ScriptRefused,
    TorilError,
)
from toril.protocol.codec import to_json
from toril.protocol.keys import QueueKeys
from toril.protocol.outcome import Completed, Failed, Outcome
from toril.spark.python import Portable
from toril.spark.sinks.column_types import plain_value, variant_columns, with_variants
from toril.spark.sources.readers import open_transport
from toril.spark.sources.server_choice import require_driver_jvm
from toril.spark.worker.batch_results import error_of
from toril.spark.worker.lease_renewer import close_all, config_of, deliveries_of
from toril.spark.worker.settle_options import SettleOptions
from toril.transport import BlockingTransport

_log = logging.getLogger("toril.spark")
_LATE_ROW: Final = (
    "is commit, and a row came after its micro-batch: a stateful operator held it, and its job was given back"
)
# What is read of a row; other columns cost nothing.
SETTLE_COLUMNS: Final = (
    "queue",
    "job_id",
    "token",
    "position",
    "result",
    "error",
    "error_kind",
    "retry_after",
)
# As many refused rows as can be read; older ones make room.
_MOST_REJECTS: Final = 10_000
# The counts of a worker that died are not left behind for long.
_COUNTS_MS: Final = 3_600_000


@dataclass(slots=True)
class SettleTally:
    """What became of rows."""

    completed: int = 0
    failed: int = 0
    retried: int = 0
    known: int = 0  # were settled before, by this write or another worker
    refused: int = 0  # the lock is lost: the job runs again
    rejected: int = 0  # rows that name no job

    def plus(self, other: SettleTally) -> SettleTally:
        return SettleTally(
            *(getattr(self, one.name) + getattr(other, one.name) for one in fields(SettleTally))
        )

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, one.name)} {one.name}" for one in fields(self))


@dataclass
class SettleMessage(WriterCommitMessage):
    """What a task did."""

    tally: SettleTally
    queues: frozenset[str] = frozenset()


@dataclass(slots=True)
class Settler:
    """Settles the rows of one task."""

    transport: BlockingTransport
    options: SettleOptions
    tally: SettleTally = field(default_factory=SettleTally)
    queues: set[str] = field(default_factory=set)

    def settle_all(self, batches: Iterable[pa.RecordBatch]) -> SettleMessage:
        """Rows are settled in the order in which their jobs were taken: that is the order of the active list."""
        rows: dict[str, list[dict[str, object]]] = defaultdict(list)
        for whole in batches:
            batch = whole.select([name for name in whole.schema.names if name in SETTLE_COLUMNS])
            variants = variant_columns(batch.schema)
            for row in batch.to_pylist(maps_as_pydicts="lossy"):
                self._add(with_variants(row, variants) if variants else row, rows)
        for queue, of_queue in rows.items():
            self._settle_queue(queue, of_queue)
        return SettleMessage(self.tally, frozenset(self.queues))

    def _add(self, row: dict[str, object], rows: dict[str, list[dict[str, object]]]) -> None:
        queue = self.options.queue or row.get("queue")
        if queue and row.get("job_id") and row.get("token"):
            rows[str(queue)].append(row)
            return
        self.tally.rejected += 1
        _log.warning("settle: a row without queue, job_id or token: %.200r", row)

    def _settle_queue(self, queue: str, rows: list[dict[str, object]]) -> None:
        keys = QueueKeys(queue, self.options.prefix).resolve(cluster=self.transport.is_cluster)
        self.queues.add(queue)
        backend = BlockingBackend(keys, self.transport, config_of(self.options.worker, 60.0))
        unique = _once(sorted(rows, key=_position))
        for start in range(0, len(unique), SETTLED_PER_CALL):
            self._settle_part(backend, unique[start : start + SETTLED_PER_CALL])

    def _settle_part(self, backend: BlockingBackend, rows: Sequence[dict[str, object]]) -> None:
        held = [(str(row["job_id"]), str(row["token"])) for row in rows]
        deliveries = deliveries_of(self.transport, backend.keys, held)
        finished = [
            FinishedJob(one, self._outcome(row, one)) for row, one in zip(rows, deliveries, strict=True)
        ]
        self._count_settled(backend, rows, finished, backend.settle(finished))

    def _outcome(self, row: Mapping[str, object], delivery: BullmqDelivery) -> Outcome:
        try:
            if row.get("error") is None:
                return Completed(self._encoded(row.get("result")))
            error = error_of(row["error"], row.get("error_kind"), row.get("retry_after"))
        except (TorilError, TypeError, ValueError) as problem:
            error = problem
        return outcome_of(error, delivery, self.options.worker_options())

    def _encoded(self, value: object) -> bytes:
        json = to_json(plain_value(value), field="result")
        if len(json) > self.options.max_result_size:
            problem = (
                f"the result has {len(json)} bytes; max_result_size allows {self.options.max_result_size}"
            )
            raise PermanentError(problem)
        return json

    def _count_settled(
        self,
        backend: BlockingBackend,
        rows: Sequence[dict[str, object]],
        finished: Sequence[FinishedJob[BullmqDelivery]],
        ack_errors: Sequence[TorilError | None],
    ) -> None:
        for row, one, error in zip(rows, finished, ack_errors, strict=True):
            if isinstance(error, (PendingChildren, FailedChildren)):
                # As in Node, an attempt that cannot complete because of its children has failed.
                outcome = outcome_of(error, one.delivery, self.options.worker_options())
                (again,) = backend.settle([FinishedJob(one.delivery, outcome)])
                self._note_one(backend.keys, row, outcome, again)
            else:
                self._note_one(backend.keys, row, one.outcome, error)

    def _note_one(
        self, keys: QueueKeys, row: Mapping[str, object], outcome: Outcome, error: TorilError | None
    ) -> None:
        if error is None:
            self._count(outcome)
        elif isinstance(error, (LockLost, JobNotFound, JobNotInState)):
            self._refused(keys, row, error)
        else:
            raise error

    def _count(self, outcome: Outcome) -> None:
        match outcome:
            case Completed():
                self.tally.completed += 1
            case Failed():
                self.tally.failed += 1
            case _:
                self.tally.retried += 1

    def _refused(self, keys: QueueKeys, row: Mapping[str, object], error: ScriptRefused) -> None:
        job_id = str(row["job_id"])
        if self.transport.run(read.is_finished(keys, job_id)).state in ("completed", "failed"):
            self.tally.known += 1
            return
        if self.transport.run(was_given_back(keys, str(row["token"]))):
            raise InvalidOption(
                "give_back", _LATE_ROW, 'set option("give_back", "never") where the jobs are read'
            )
        self.tally.refused += 1
        text = to_json({"job_id": job_id, "token": str(row["token"])})
        reject = ("reason", f"not settled: {error}"[:1000], "row", text)
        self.transport.run(
            plain(bytes, "XADD", rejects_key(keys), "MAXLEN", "~", _MOST_REJECTS, "*", *reject)
        )


def _position(row: Mapping[str, object]) -> int:
    position = row.get("position")
    return position if isinstance(position, int) else 0


_RETURNED_TWICE: Final = {
    "result": None,
    "error": "the query returned this job twice",
    "error_kind": "permanent",
}


def _once(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Each job once; one that has several rows fails, because nobody knows which of them is meant."""
    by_job: dict[tuple[str, str], dict[str, object]] = {}
    for row in rows:
        key = str(row["job_id"]), str(row["token"])
        by_job[key] = {**row, **_RETURNED_TWICE} if key in by_job else row
    return list(by_job.values())


def settle_task(options: SettleOptions, batches: Iterator[pa.RecordBatch]) -> SettleMessage:
    """Settles the rows of one task."""
    require_driver_jvm(options.jvm)
    with open_transport(options.url) as transport:
        return Settler(transport, options).settle_all(batches)


def _summed(messages: Sequence[object]) -> SettleTally:
    done = [one.tally for one in messages if isinstance(one, SettleMessage)]
    return reduce(SettleTally.plus, done, SettleTally())


def _report(messages: Sequence[object]) -> set[str]:
    done = [one for one in messages if isinstance(one, SettleMessage)]
    tally = _summed(messages)
    level = logging.WARNING if tally.refused or tally.rejected else logging.INFO
    where = " (read them with table=rejects)" if tally.refused else ""
    _log.log(level, "settle: %s%s", tally, where)
    return {queue for one in done for queue in one.queues}


class SettleBatchWriter(Portable, DataSourceArrowWriter):
    """`df.write.format("toril").option("op", "settle")`"""

    def __init__(self, options: SettleOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SettleMessage:
        return settle_task(self.options, iterator)

    def commit(self, messages: Sequence[object]) -> None:
        queues = sorted(_report(messages))
        if not queues or (self.options.run is None and self.options.counts is None):
            return
        with open_transport(self.options.url) as transport:
            for queue in queues if self.options.run is not None else ():
                keys = QueueKeys(queue, self.options.prefix).resolve(cluster=transport.is_cluster)
                close_all(transport, keys, str(self.options.run), dropped=self.options.dropped)
            if self.options.counts is not None:
                self._count(transport, self.options.counts, _summed(messages))

    def _count(self, transport: BlockingTransport, key: str, tally: SettleTally) -> None:
        for name in ("completed", "failed"):
            transport.run(plain(int, "HINCRBY", key, name, getattr(tally, name)))
        transport.run(plain(bool, "PEXPIRE", key, _COUNTS_MS))

    def abort(self, messages: Sequence[object]) -> None:
        _log.warning(
            "settle was interrupted after %d tasks; written again, it settles nothing twice", len(messages)
        )


class SettleStreamWriter(Portable, DataSourceStreamArrowWriter):
    """`df.writeStream.format("toril").option("op", "settle")`"""

    def __init__(self, options: SettleOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SettleMessage:
        return settle_task(self.options, iterator)

    def commit(self, messages: Sequence[object], batchId: int) -> None:
        del batchId  # the lock decides what is settled, not the number of the micro-batch
        _report(messages)

    def abort(self, messages: Sequence[object], batchId: int) -> None:
        _log.warning("settle, batch %d was interrupted after %d tasks", batchId, len(messages))
