"""The loop engine on the driver: Spark jobs of long tasks, one after another.

Guarantee: a round is one Spark job. When it has failed, `release` gives back what the workers of its tasks held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from toril.protocol.keys import QueueKeys
from toril.protocol.worker_options import DEFAULT_MAX_RESULT_SIZE
from toril.spark.sources.server_choice import Choice
from toril.spark.worker.data_types import data_type_of
from toril.spark.worker.give_back import give_back_of
from toril.spark.worker.handlers import Shape
from toril.spark.worker.loop_slice import REPORT_SCHEMA, LoopSlice
from toril.spark.worker.options import LOOP_JOBS, SparkWorkerOptions
from toril.spark.worker.work_summary import WorkSummary
from toril.transport import BlockingTransport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a server whose cores nobody tells us (Spark Connect).
_UNKNOWN_CORES: Final = 2


class LoopEngine:
    """Starts slices of one worker."""

    def __init__(
        self, options: SparkWorkerOptions, handler: object, shape: Shape, server: Choice, worker: str
    ) -> None:
        self._options = options
        self._handler = handler
        self._shape = shape
        self._server = server
        self._worker = worker
        self._number = 0  # of the last slice that was started

    def round(self, spark: SparkSession, *, until_idle: bool) -> tuple[WorkSummary, bool]:
        """Runs one slice; returns what it did, and whether nothing was left when it ended."""
        self._number += 1
        work = self._slice(until_idle=until_idle)
        tasks = self._options.tasks or _cores_of(spark)
        reports = spark.range(0, tasks, 1, tasks).mapInArrow(_runner(work), REPORT_SCHEMA).collect()
        done = WorkSummary(
            completed=sum(one.completed for one in reports), failed=sum(one.failed for one in reports)
        )
        return done, any(one.idle for one in reports)

    def release(self, transport: BlockingTransport, keys: QueueKeys) -> int:
        """Gives back what the workers of a failed slice held: none runs between two rounds."""
        return give_back_of(transport, keys, lambda worker: worker.startswith(f"{self._worker}."))

    def close(self) -> None:
        """There is nothing to remove."""

    def _slice(self, *, until_idle: bool) -> LoopSlice:
        options = self._options
        return LoopSlice(
            url=self._server.url,
            jvm=self._server.jvm,
            queues=options.queues,
            prefix=options.prefix,
            handler=self._handler,
            shape=self._shape,
            max_jobs=options.max_jobs or LOOP_JOBS,
            max_result_size=options.worker.get("max_result_size", DEFAULT_MAX_RESULT_SIZE),
            data_type=data_type_of(options.data_schema),
            options=dict(options.worker),
            worker=self._worker,
            number=self._number,
            seconds=options.slice,
            until_idle=until_idle,
        )


def _runner(work: LoopSlice) -> Any:
    def run(batches: Any) -> Any:
        return work.run(batches)

    return run


def _cores_of(spark: SparkSession) -> int:
    context = getattr(spark, "sparkContext", None)
    return int(context.defaultParallelism) if context is not None else _UNKNOWN_CORES
