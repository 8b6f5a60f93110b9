"""The two Spark adapters of the sinks: one for batch writes, one for streams.

Guarantee: a task that Spark repeats, a micro-batch that it replays and a batch write that is started again under its
run name add no job twice.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from toril.commands.bulk_enqueue import Admission, forget_run
from toril.errors import OutsideSparkTask
from toril.spark.python import Portable
from toril.spark.sinks._job_operations import JobOperator
from toril.spark.sinks._rows import RowReader
from toril.spark.sinks._sender import Sender, Tally
from toril.spark.sinks.identity import known_by
from toril.spark.sinks.options import SinkOptions
from toril.spark.sources.readers import open_transport
from toril.spark.sources.server_choice import require_driver_jvm

_log = logging.getLogger("toril.spark")
# Spark replays the last micro-batch only; a few more are kept for whoever takes entries out of a checkpoint by hand.
_BATCHES_REMEMBERED = 10


@dataclass
class Message(WriterCommitMessage):
    """What a task did."""

    tally: Tally
    query: str = ""  # of a stream: what its runs are named after


def write_task(options: SinkOptions, run: str, save: str, batches: Iterator[pa.RecordBatch]) -> Message:
    """Writes the rows of one task of a save."""
    task = TaskContext.get()
    if task is None:
        raise OutsideSparkTask("the writer needs a Spark task; use df.write")
    require_driver_jvm(options.jvm)
    with open_transport(options.url) as transport:
        if options.op != "enqueue":
            return Message(JobOperator(transport, options).act_all(batches))
        admission = Admission(
            run=run,
            ledger_ms=int(options.ledger_hours * 3_600_000),
            max_waiting=options.max_waiting,
            rate=options.rate,
            known_by=known_by(options),
            save=save,
            partition=task.partitionId(),
        )
        reader = RowReader(options, run, task.partitionId(), transport.now_ms())
        return Message(Sender(transport, options, admission).send_all(batches, reader))


def _summed(messages: Sequence[object]) -> Tally:
    return reduce(Tally.plus, (one.tally for one in messages if isinstance(one, Message)), Tally())


def _report(options: SinkOptions, tally: Tally) -> None:
    if options.op == "enqueue":
        _log.log(
            logging.WARNING if tally.rejected else logging.INFO,
            "enqueue: %s%s",
            tally,
            _where(options, tally),
        )
    elif tally.rejected or (tally.skipped and not tally.added):
        _log.warning(
            "%s: %s; those skipped are gone or no longer in the state: check queue and prefix",
            options.op,
            tally.operations_text,
        )
    else:
        _log.info("%s: %s", options.op, tally.operations_text)


def _where(options: SinkOptions, tally: Tally) -> str:
    """Where to look at rejected rows."""
    if not tally.rejected:
        return ""
    kind = "" if options.kind == "bullmq" else f", kind={options.kind}"
    return f" (read them with table=rejects{kind}, queues={','.join(sorted(tally.queues))})"


def _forget(options: SinkOptions, queues: set[str], run: str) -> None:
    with open_transport(options.url) as transport:
        transport.run_many(
            [forget_run(options.keys(queue, cluster=transport.is_cluster), run) for queue in sorted(queues)]
        )


class BatchWriter(Portable, DataSourceArrowWriter):
    """`df.write.format("toril")`"""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.run = options.run or f"once-{uuid.uuid4().hex}"
        self.save = _new_save()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        return write_task(self.options, self.run, self.save, iterator)

    def commit(self, messages: Sequence[object]) -> None:
        tally = _summed(messages)
        _report(self.options, tally)
        if self.options.run is None and self.options.op == "enqueue":
            _forget(self.options, tally.queues, self.run)  # nobody can start this write again

    def abort(self, messages: Sequence[object]) -> None:
        _log.warning("%s was interrupted after %s", self.options.op, _summed(messages))


class StreamWriter(Portable, DataSourceStreamArrowWriter):
    """`df.writeStream.format("toril")`"""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.save = _new_save()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        query, batch = _micro_batch()
        name = self.options.run or query
        return Message(write_task(self.options, _run_of(name, batch), self.save, iterator).tally, name)

    def commit(self, messages: Sequence[object], batchId: int) -> None:
        tally = _summed(messages)
        _report(self.options, tally)
        names = {one.query for one in messages if isinstance(one, Message)}
        if self.options.op == "enqueue" and batchId >= _BATCHES_REMEMBERED:
            for name in names:
                _forget(self.options, tally.queues, _run_of(name, batchId - _BATCHES_REMEMBERED))

    def abort(self, messages: Sequence[object], batchId: int) -> None:
        _log.warning("%s, batch %d was interrupted after %s", self.options.op, batchId, _summed(messages))


def _new_save() -> str:
    """An id of one save among others of the same run: a writer is made once for each."""
    return uuid.uuid4().hex[:8]


def _run_of(query: str, batch: int) -> str:
    return f"{query}.{batch}"


def _micro_batch() -> tuple[str, int]:
    """Which query and which of its micro-batches this task belongs to: both survive a restart with the checkpoint."""
    task = TaskContext.get()
    query = task.getLocalProperty("sql.streaming.queryId") if task else None
    batch = task.getLocalProperty("streaming.sql.batchId") if task else None
    if query is None or batch is None:
        raise OutsideSparkTask("the task belongs to no streaming query; use df.writeStream")
    return query, int(batch)
