"""The loop engine on an executor: one Spark task that runs a `Worker` for some seconds.

Guarantee: no row travels through Spark. The worker takes and settles jobs itself, with its own lock renewer and stalled
sweeper. When the slice ends, or is told to stop, it takes no more jobs, those in hand finish, and the rest goes back in
its order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pyarrow as pa
from pyspark import TaskContext

from toril.app import App
from toril.backends.bullmq import BullmqDelivery
from toril.commands.command import plain
from toril.errors import OutsideSparkTask, PermanentError, TorilError
from toril.protocol.codec import to_json
from toril.protocol.keys import QueueKeys
from toril.spark.python import Portable
from toril.spark.sources.server_choice import require_driver_jvm
from toril.spark.worker.batch_results import Settled, results_of
from toril.spark.worker.handlers import Shape
from toril.spark.worker.job_columns import JobColumns
from toril.spark.worker.stop_signal import stop_key
from toril.transport import AsyncTransport, parse_address
from toril.worker import Worker
from toril.worker.batch_function import BatchFunction, BatchResults

# How often a slice looks whether it is to stop.
_STOP_CHECK: Final = 0.5

REPORT_SCHEMA: Final = "worker string, completed bigint, failed bigint, idle boolean"
_REPORT: Final = pa.schema(
    [
        pa.field("worker", pa.string()),
        pa.field("completed", pa.int64()),
        pa.field("failed", pa.int64()),
        pa.field("idle", pa.bool_()),  # whether nothing was left
    ]
)


@dataclass
class LoopSlice(Portable):
    """What one task of the loop engine runs; it is sent to the executors."""

    url: str = field(repr=False)  # it may hold a password
    jvm: str | None
    queues: tuple[str, ...]
    prefix: str
    handler: Any
    shape: Shape
    max_jobs: int
    max_result_size: int | None
    data_type: pa.DataType | None
    options: dict[str, Any]  # of each `Worker`
    worker: str  # the name of the `SparkWorker`
    number: int  # of this slice
    seconds: float
    until_idle: bool

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs until the slice is over; returns what was done."""
        for _ in batches:
            """Spark gives each task one row, which means nothing."""
        require_driver_jvm(self.jvm)
        context = TaskContext.get()
        if context is None:
            raise OutsideSparkTask("a slice of work needs a Spark task; use SparkWorker")
        name = f"{self.worker}.{self.number}.{context.partitionId()}.{context.attemptNumber()}"
        gc.freeze()  # a collection need not walk through the modules of Spark, pandas and the handler
        try:
            reports = asyncio.run(self._run(name))
        finally:
            gc.unfreeze()
        yield pa.RecordBatch.from_pylist(reports, schema=_REPORT)

    async def _run(self, name: str) -> list[dict[str, Any]]:
        async with contextlib.AsyncExitStack() as running:
            workers = await self._started(name, running)
            idle = await self._wait(workers)
        return [
            {"worker": name, "completed": one.processed, "failed": one.failed, "idle": idle}
            for one in workers
        ]

    async def _started(self, name: str, running: contextlib.AsyncExitStack) -> Sequence[Worker]:
        if self.shape == "app":
            app: App = self.handler.load()
            app.configure(redis=self.url, prefix=self.prefix)  # as in the driver, which may have changed them
            of_app = app.worker(self.queues, **{**self.options, "worker_id": name})
            await running.enter_async_context(of_app)
            return cast("Sequence[Worker]", of_app.workers)  # others than of BullMQ are refused by the driver
        workers = [self._worker(queue, name) for queue in self.queues]
        for one in workers:
            await running.enter_async_context(one)
        return workers

    def _worker(self, queue: str, name: str) -> Worker:
        handler, concurrency = self.handler, self.options.get("concurrency", 1)
        if self.shape != "job":
            function = VectorHandler(queue, handler, self.shape, self.data_type, self.max_result_size)
            handler, concurrency = BatchFunction(function, self.max_jobs), 2 * self.max_jobs
        options = {**self.options, "concurrency": concurrency, "worker_id": name}
        return Worker(queue, handler, redis=self.url, prefix=self.prefix, **options)

    async def _wait(self, workers: Sequence[Worker]) -> bool:
        """Waits until the slice is over, it is told to stop, or a worker fails.

        If asked for, it ends when nothing is left, too; returns whether that is so.
        """
        tasks = [asyncio.ensure_future(self._until_stop_key())]
        tasks += [asyncio.ensure_future(one.wait_stopped()) for one in workers]
        idle = asyncio.ensure_future(_all_idle(workers)) if self.until_idle else None
        tasks += [idle] if idle is not None else []
        try:
            await asyncio.wait(tasks, timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
            return idle is not None and idle.done() and idle.exception() is None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_stop_key(self) -> None:
        address = parse_address(self.url)
        keys = QueueKeys(self.queues[0], self.prefix).resolve(cluster=address.is_cluster)
        async with AsyncTransport(address) as transport:
            while True:
                with contextlib.suppress(TorilError):  # an outage is the workers' to report
                    if await transport.run(plain(bool, "EXISTS", stop_key(keys, self.worker))):
                        return
                await asyncio.sleep(_STOP_CHECK)


async def _all_idle(workers: Sequence[Worker]) -> None:
    """Returns when all queues are idle, also those to which jobs of the others added."""
    ended = -1
    while ended != (ended := sum(one.processed + one.failed for one in workers)):
        for one in workers:
            await one.run_until_idle()


@dataclass(frozen=True, slots=True)
class VectorHandler:
    """Calls a handler of pandas or Arrow batches with deliveries of one queue."""

    queue: str
    handler: Callable[[Any], Any]
    shape: Shape
    data_type: pa.DataType | None
    max_result_size: int | None

    def __call__(self, deliveries: Sequence[BullmqDelivery]) -> BatchResults:
        columns = JobColumns(self.queue, self.data_type)
        data, misfits = columns.data_of(deliveries)
        if not misfits:
            return self._call(columns.table(deliveries, data), deliveries)
        fitting = [at for at in range(len(deliveries)) if at not in misfits]
        called = [deliveries[at] for at in fitting]
        table = columns.table(called, data.take(pa.array(fitting, pa.int64())))
        results = dict(zip(fitting, self._call(table, called), strict=True)) if called else {}
        return [misfits[at] if at in misfits else results[at] for at in range(len(deliveries))]

    def _call(self, table: pa.Table, deliveries: Sequence[BullmqDelivery]) -> list[Settled]:
        returned = self.handler(as_batch(table, self.shape))
        if inspect.iscoroutine(returned):
            returned.close()
            problem = (
                "the handler takes batches and is a coroutine function; write `def`: it runs in a thread"
            )
            return [PermanentError(problem)] * len(deliveries)
        return results_of(returned, [one.id for one in deliveries], self._encode)

    def _encode(self, value: object) -> bytes:
        json = to_json(value, field="result")
        if self.max_result_size is not None and len(json) > self.max_result_size:
            raise PermanentError(
                f"the result has {len(json)} bytes of JSON and max_result_size allows {self.max_result_size}"
            )
        return json


def as_batch(table: pa.Table, shape: Shape) -> Any:
    """The batch that a handler gets. For pandas, parts of parsed data are columns of their own: `data.x`."""
    return table.flatten().to_pandas() if shape == "pandas" else table.combine_chunks()
