"""The worker of BullMQ queues."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Unpack

from toril.backends.bullmq import BullmqDelivery
from toril.jobs import BlockingJob, Job, JobBatch
from toril.protocol.keys import QueueKeys
from toril.protocol.option_names import knows_its_options
from toril.protocol.worker_options import WorkerOptions, WorkerOptionsDict, new_worker_id
from toril.transport import ConnectionPolicy, parse_address
from toril.worker._bullmq_adapter import BullmqAdapter
from toril.worker._handlers import checked_handlers, options_of
from toril.worker._reconnect import policy_of
from toril.worker.base_worker import BaseWorker
from toril.worker.configured_handler import ConfiguredHandler

JobHandler = (
    Callable[[Job], Awaitable[Any]]
    | Callable[[Job], AsyncIterator[Any]]
    | Callable[[BlockingJob], Any]
    | Callable[[JobBatch[Job]], Awaitable[Any]]
    | Callable[[JobBatch[BlockingJob]], Any]
    | ConfiguredHandler
)


@knows_its_options("an argument of Worker")
class Worker(BaseWorker[BullmqDelivery]):
    """Fetches jobs of a BullMQ queue and runs your handler on them.

    `handler` is a function of one argument, the job, or a mapping from job names to such functions (`"*"` for others).
    A coroutine function runs in the event loop; a plain function runs in a thread and gets the blocking job. What it
    returns is the job's result; what it raises decides between a retry and failure. Each value that a generator yields
    is stored, a retry finds it in `job.checkpoint`, and the last one is the result. With `batch=Batch(…)` the function
    gets a list of jobs, a `JobBatch`.
    """

    def __init__(
        self,
        name: str,
        handler: JobHandler | Mapping[str, JobHandler],
        *,
        redis: Any = None,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        policy: ConnectionPolicy | None = None,
        options: WorkerOptions | None = None,
        **fields: Unpack[WorkerOptionsDict],
    ) -> None:
        chosen = options_of(options, fields, type(self))
        address = parse_address(redis)
        self.keys = QueueKeys(name, prefix, hash_tag=hash_tag).resolve(cluster=address.is_cluster)
        own_policy = policy_of(chosen, policy)
        worker_id = chosen.worker_id or new_worker_id()
        handlers = checked_handlers(handler, chosen)
        adapter = BullmqAdapter(self.keys, address, own_policy, chosen, worker_id)
        super().__init__(name, handlers, worker_id, chosen, own_policy, address, adapter)
        adapter.on_progress = self._observer.progressed
