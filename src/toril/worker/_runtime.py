"""What runs inside a worker, from one start to the next stop: its services, and how they are connected.

backend ◄── fetch loop ──► attempt runner ──► task pool ──► executor ──► handler
   ▲            ▲                │
   │            └── outcomes ────┘
   ├── lock renewer (thread): renews locks, publishes the report, checks for cancellations
   └── stalled sweeper: recovers jobs of dead workers
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Generic

from toril.backends.base import Backend, D
from toril.protocol.worker_options import WorkerOptions
from toril.transport import ConnectionPolicy
from toril.worker._batch_fetch_loop import BatchFetchLoop
from toril.worker._batch_handler import AsyncBatchHandler, BatchHandler
from toril.worker._batch_runner import BatchRunner, batch_rules, make_runner
from toril.worker._connection import Connection
from toril.worker._executors import AroundExecutor, Executor, LoopExecutor, ThreadExecutor, executor_for
from toril.worker._fetch_loop import FetchLoop
from toril.worker._generators import with_checkpoints
from toril.worker._job_adapter import JobAdapter
from toril.worker._lock_renewer import LockRenewer
from toril.worker._name_refusals import NameRefusals
from toril.worker._observer import WorkerObserver
from toril.worker._process_stats import resident_bytes
from toril.worker._results import drop_result
from toril.worker._stalled_sweeper import StalledSweeper
from toril.worker._status import WorkerState, WorkerStatus
from toril.worker.configured_handler import ConfiguredHandler

_STARTED = time.monotonic()
# The lock renewer's thread ends as soon as its connection is closed, unless it is just connecting.
RENEWER_SECONDS = 0.1


class WorkerRuntime(Generic[D]):
    """The services of a worker that was started. It is used once: another start makes another runtime."""

    def __init__(
        self,
        handlers: Mapping[str | None, ConfiguredHandler],
        options: WorkerOptions,
        policy: ConnectionPolicy,
        adapter: JobAdapter[D],
        observer: WorkerObserver[D],
        status: WorkerStatus,
    ) -> None:
        self._options = options
        self._adapter = adapter
        self._observer = observer
        self._status = status
        names = tuple(name for name in handlers if name is not None)
        announced = names if None not in handlers else (*names, "*")
        self.backend: Backend[D] = adapter.make_backend(announced, self)
        self.executors = make_executors(handlers, options, adapter)
        self.connection = Connection(self.backend, policy, observer, status)
        refusals = NameRefusals(names, self.backend, adapter, observer, options)
        self.runner = make_runner(handlers, self.executors, options, adapter, observer, status, refusals)
        self.fetch_loop = self._make_fetch_loop(options)
        heartbeat = float(options.heartbeat_interval)
        self.lock_renewer = LockRenewer(
            self.backend,
            self.fetch_loop,
            self.runner,
            observer,
            self,
            heartbeat,
            renews=not options.skip_lock_renewal,
        )
        self.connection.attach(self.lock_renewer)
        refusals.connect(self.fetch_loop, self.lock_renewer)
        self.stalled_sweeper = StalledSweeper(
            self.backend, self.connection, self.fetch_loop, self.lock_renewer, observer, options
        )

    def _make_fetch_loop(self, options: WorkerOptions) -> FetchLoop[D]:
        backend, runner, connection, observer = self.backend, self.runner, self.connection, self._observer
        if options.batch is not None and isinstance(runner, BatchRunner):
            return BatchFetchLoop(backend, runner, connection, observer, options, options.batch)
        return FetchLoop(backend, runner, connection, observer, options)

    def start(self, *, fetches: bool) -> None:
        """Starts the services; the backend must be open."""
        self.lock_renewer.start()
        if not self._options.skip_stalled_check:
            self.stalled_sweeper.start()
        if fetches:
            self.fetch_loop.start()

    async def stop(self, *, answers: bool = True) -> None:
        """Closes the connections and ends the services. Jobs that still run are not settled any more.

        `answers`: whether the server does. If not, nothing waits for it.
        """
        # Connections first: a call to a server that does not answer must not delay the stop.
        self.fetch_loop.end()
        self.connection.reconnector.end()
        await self.backend.close(answers)
        await self.close_adapter()
        await self.fetch_loop.stop()
        await self.stalled_sweeper.stop()
        await asyncio.to_thread(self.lock_renewer.stop, RENEWER_SECONDS)
        await self.runner.close()
        for executor in self.executors.values():
            await executor.close()

    async def close_adapter(self) -> None:
        """Closes the connections of handlers and of the lock renewer."""
        await self._adapter.close()

    def scheduler_broken(self) -> None:
        self._observer.scheduler_broken()

    def may_recover(self) -> bool:
        """Whether expired locks mean dead workers. A worker that has not started yet has renewed no locks."""
        return self._status.state is WorkerState.STOPPED or self.stalled_sweeper.may_sweep()

    def set_concurrency(self, concurrency: int) -> None:
        for executor in self.executors.values():
            executor.resize(concurrency)
        self.fetch_loop.concurrency = concurrency

    def figures(self) -> Mapping[str, object]:
        """The worker report, which is published at every heartbeat."""
        return {
            "state": self._status.state.value,
            "concurrency": self.fetch_loop.concurrency,
            "jobs": len(self.fetch_loop.running),
            "processed": self._observer.processed,
            "failed": self._observer.failed,
            "heartbeats_ok": self.lock_renewer.renewed,
            "heartbeats_failed": self.lock_renewer.failed,
            "sweeps_done": self.stalled_sweeper.done,
            "sweeps_skipped": self.stalled_sweeper.skipped,
            "memory": resident_bytes(),
            "threads": threading.active_count(),
            "uptime": round(time.monotonic() - _STARTED, 1),
        }


def make_executors(
    handlers: Mapping[str | None, ConfiguredHandler], options: WorkerOptions, adapter: JobAdapter[D]
) -> dict[str | None, Executor]:
    """An executor for each handler."""
    rules = batch_rules(handlers, options)
    if rules is not None and rules.gives_deliveries:
        return {name: ThreadExecutor(one.function, drop_result) for name, one in handlers.items()}
    make = _make_executor if rules is None else _make_batch_executor
    return {name: make(one, options, adapter) for name, one in handlers.items()}


def _make_executor(handler: ConfiguredHandler, options: WorkerOptions, adapter: JobAdapter[D]) -> Executor:
    executor: Executor
    encode = adapter.encoder()
    function = with_checkpoints(handler.function, encode)
    match executor_for(function, handler.options(options).executor):
        case "async":
            executor = LoopExecutor(function)
        case "process":
            executor = adapter.make_process_executor(function)
        case _:
            executor = ThreadExecutor(function, encode)
    return executor if handler.around is None else AroundExecutor(executor, handler.around, adapter)


def _make_batch_executor(
    handler: ConfiguredHandler, options: WorkerOptions, adapter: JobAdapter[D]
) -> Executor:
    function, encode = handler.function, adapter.encoder()
    match executor_for(function, handler.options(options).executor):
        case "async":
            return LoopExecutor(AsyncBatchHandler(function, encode))
        case "process":
            return adapter.make_process_executor(function, batches=True)
        case _:
            return ThreadExecutor(BatchHandler(function, encode), drop_result)
