"""What all workers share: the life of a worker, and its services wired together.

    stopped ──start──► running ◄──────► disconnected
       ▲                  │                  │
       └── shutting down ◄┴───────stop───────┘

Guarantee: leaving `async with`, or `stop`, returns when no handler runs, no service is left and all connections are
closed; jobs that did not finish within the time-out are back in the queue, their attempt not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from toril.contract.backoff import Backoff
from toril.contract.duration import to_seconds
from toril.contract.errors import Closed, InvalidOption, JobCancelled, StoreUnavailable, TorilError
from toril.contract.outcome import Outcome
from toril.contract.worker_options import WorkerOptions, new_worker_id
from toril.queues.source import Settled, Source
from toril.store import ConnectionPolicy
from toril.telemetry.hooks import Work
from toril.worker._callbacks import Callback, Callbacks, WorkerEvent
from toril.worker._careful_metrics import careful
from toril.worker._executors import Executor, Handler, LoopExecutor, ThreadExecutor, choose
from toril.worker._handlers import by_name
from toril.worker._health import WorkerHealth
from toril.worker._lock_keeper import LockKeeper
from toril.worker._log import WorkerLog
from toril.worker._memory import resident_bytes
from toril.worker._pump import Pump
from toril.worker._reconnect import Reconnector
from toril.worker._runner import Attempt, Runner, StoppedByWorker
from toril.worker._shutdown import signals_caught
from toril.worker._stalled_sweeper import StalledSweeper
from toril.worker._witness import Witness

# After the time-out of a stop, this long is left for handing jobs back to a server that may be slow or away.
HAND_BACK_SECONDS = 5.0
# Then handlers that do not end when they are cancelled are left behind, and this long is left for their jobs.
LAST_SECONDS = 1.0
# Saying that the worker has stopped must not hold up its end: the report would vanish by itself, only later.
FAREWELL_SECONDS = 0.5
# How often `run_until_idle` looks at the queue while nothing tells it to.
IDLE_GLANCE = 0.05


class WorkerState(enum.Enum):
    """Where a worker is in its life."""

    STOPPED = "stopped"
    RUNNING = "running"
    DISCONNECTED = "disconnected"
    SHUTTING_DOWN = "shutting down"


class BaseWorker:
    """A worker without a queue kind: subclasses give it a source and dress its jobs."""

    kind = "bullmq"

    def __init__(self, queue: str, handler: Handler | Mapping[str, Handler], options: WorkerOptions) -> None:
        self.queue = queue
        self.label = f"{self.kind}:{queue}" if self.kind != "bullmq" else queue  # how metrics name the queue
        self.options = options
        self.id = options.worker_id or new_worker_id()
        self.state = WorkerState.STOPPED
        self._handlers = by_name(handler)
        self._log = WorkerLog(options.logger, worker_id=self.id, queue=queue, payloads=options.log_payloads)
        self._metrics = careful(options.metrics, self._log.trouble)
        self._callbacks = Callbacks(self._log.trouble)
        self._witness = Witness(self.label, self._metrics, self._log, self._callbacks)
        self._paused = False
        self._resumed = asyncio.Event()
        self._starting = asyncio.Lock()
        self._opening = False  # connecting for the first time
        self._abandoned = False  # stopped before it ran
        self._stopped = asyncio.Event()
        self._stopping: asyncio.Task[None] | None = None
        self._failure: TorilError | None = None

    @property
    def processed(self) -> int:
        """Jobs that this worker has completed."""
        return self._witness.processed

    @property
    def failed(self) -> int:
        """Jobs that failed for good in this worker's hands."""
        return self._witness.failed

    def health(self) -> WorkerHealth:
        """How the worker is, for those who decide whether it gets work or is started again."""
        if self.state is WorkerState.STOPPED:
            return WorkerHealth(state=self.state.value)
        return WorkerHealth(
            state=self.state.value,
            connected=self.state is not WorkerState.DISCONNECTED,
            sweeping=self._sweeper.on_time,
            keeping_locks=self._keeper.on_time,
            taking=not self._paused and self.state is WorkerState.RUNNING,
            jobs=len(self._runner.attempts),
            longest_job=max((one.seconds for one in self._runner.attempts.values()), default=0.0),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue!r}, id={self.id!r}, state={self.state.value})"

    # --- what a kind must say -------------------------------------------------------------------------------

    def _make_source(self) -> Source:
        raise NotImplementedError

    def _dress(self, delivery: Any, blocking: bool) -> Any:
        """The object that a handler gets."""
        raise NotImplementedError

    def _make_process_executor(self, handler: Handler) -> Executor:  # noqa: ARG002
        raise InvalidOption("executor", "'process' is not offered by this kind of worker", "use 'thread'")

    def _backoff_of(self, delivery: Any) -> Backoff | None:  # noqa: ARG002
        return None

    def _encode_result(self, result: Any) -> Any:
        return result

    def _forbidden(self, delivery: Any) -> str | None:  # noqa: ARG002
        """Why a job must fail without being run."""
        return None

    def _carrier_of(self, delivery: Any) -> str | None:  # noqa: ARG002
        """The trace context that came with a job."""
        return None

    def _waited(self, delivery: Any) -> float | None:  # noqa: ARG002
        """Seconds for which a job was ready before we took it; None when that cannot be told."""
        return None

    async def _busy_elsewhere(self) -> bool:
        """Whether the queue still holds work that this or another worker must do."""
        return False

    async def _release(self) -> None:
        """Closes what the kind has opened besides its source."""

    # --- life -----------------------------------------------------------------------------------------------

    @property
    def policy(self) -> ConnectionPolicy:
        """How the worker treats its connections; calls fail at once, and the worker reconnects by itself."""
        options = self.options
        return ConnectionPolicy(
            call_attempts=1,
            reconnect_delay=float(options.reconnect_delay),
            max_reconnect_delay=float(options.max_reconnect_delay),
            max_reconnect_attempts=options.max_reconnect_attempts,
        )

    async def start(self) -> None:
        """Connects and begins to take jobs. May be called twice; a worker that is stopping starts again afterwards."""
        while self.state is WorkerState.SHUTTING_DOWN and self._stopping is not None:
            await asyncio.wait({self._stopping})
        async with self._starting:
            if self.state is WorkerState.STOPPED:
                await self._start()

    async def _start(self) -> None:
        self._stopped = asyncio.Event()
        self._stopping = None
        self._failure = None
        self._loop = asyncio.get_running_loop()
        self._source = self._make_source()
        self._executors = self._make_executors()
        self._wire_up()
        self._opening, self._abandoned = True, False
        try:
            await self._open()
        except BaseException as error:
            await self._close_all()
            if self._abandoned:
                raise Closed("the worker was stopped while it started") from error
            raise
        finally:
            self._opening = False
        self._set_state(WorkerState.RUNNING)
        self._keeper.start()
        self._sweeper.start()
        if not self._paused:
            self._pump.start()
        self._metrics.set_active_workers(self.label, self.id, True)
        self._callbacks.tell("ready")

    async def _open(self) -> None:
        """The first connection is tried like every later one: patiently, unless there is a limit."""
        try:
            await self._source.open()
        except StoreUnavailable as error:
            if not await self._reconnector.restore(error):
                raise
        self._reconnector.answered()
        self._metrics.set_redis_connection_status(True)

    def _make_executors(self) -> dict[str | None, Executor]:
        made: dict[str | None, Executor] = {}
        for name, handler in self._handlers.items():
            match choose(handler, self.options.executor):
                case "async":
                    made[name] = LoopExecutor(handler)
                case "process":
                    made[name] = self._make_process_executor(handler)
                case _:
                    made[name] = ThreadExecutor(handler)
        return made

    def _wire_up(self) -> None:
        options = self.options
        self._runner = Runner(
            executors=self._executors,
            options=options,
            dress=self._dress,
            backoff_of=self._backoff_of,
            encode=self._encode_result,
            forbidden=self._forbidden,
            on_start=self._on_attempt_start,
            on_end=self._on_attempt_end,
            work_of=self._work_of,
        )
        self._pump = Pump(
            self._source,
            concurrency=options.concurrency,
            drain_delay=float(options.drain_delay),
            run=self._runner.start,
            on_verdict=self._witness.refused,
            on_settled=self._witness.settled,
            on_disconnect=self._on_disconnect,
            on_error=self._witness.trouble,
            on_drained=functools.partial(self._callbacks.tell, "drained"),
            on_answer=self._on_answer,
        )
        self._keeper = LockKeeper(
            self._source,
            interval=float(options.heartbeat_interval),
            in_hand=self._pump.in_hand,
            on_beat=self._witness.beat,
            on_lost=self._from_keeper(self._on_lost),
            on_error=self._on_heartbeat_error,
            glance=self._glance if hasattr(self._source, "cancelled") else None,
            figures=self._figures,
        )
        self._sweeper = StalledSweeper(
            self._source,
            interval=float(options.stalled_check_interval),
            on_stalled=self._witness.stalled,
            on_skipped=self._witness.sweep_skipped,
            on_error=self._on_sweep_error,
        )
        self._reconnector = Reconnector(
            self._source.open,
            policy=self.policy,
            log=self._log,
            on_attempt=self._metrics.increment_redis_reconnect_attempts,
        )

    async def stop(self, timeout: float | None = None) -> None:
        """Takes no more jobs and lets those in hand finish; after `timeout` seconds they go back to the queue.

        `timeout=None` means `shutdown_timeout`; 0 means at once. May be called twice: the second call may be shorter.
        """
        limit = to_seconds("timeout", self.options.shutdown_timeout if timeout is None else timeout)
        if self._opening:
            await self._abandon_start()
        if self.state is WorkerState.STOPPED and self._stopping is None:
            return
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(limit), name="toril-stop")
        elif limit <= 0 and not self._stopping.done():
            self._send_back()
        await asyncio.shield(self._stopping)
        await self._callbacks.settle()

    async def _abandon_start(self) -> None:
        self._abandoned = True
        self._reconnector.end()
        await self._source.close()
        async with self._starting:
            """The start has noticed."""

    async def _stop(self, limit: float) -> None:
        try:
            await self._wind_down(limit)
        finally:
            self._set_state(WorkerState.STOPPED)
            self._callbacks.tell("closed")
            self._stopped.set()

    async def _wind_down(self, limit: float) -> None:
        connected = self.state is not WorkerState.DISCONNECTED
        self._set_state(WorkerState.SHUTTING_DOWN)
        self._pump.hold()
        self._reconnector.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pump.stop_waiting(), 1.0)
        await self._finish_jobs(limit)
        if connected:
            await self._within(FAREWELL_SECONDS, asyncio.to_thread(self._keeper.retire))
        await self._close_all()
        self._metrics.set_active_workers(self.label, self.id, False)

    async def _finish_jobs(self, limit: float) -> None:
        if limit > 0 and not await self._within(limit, self._pump.drained()):
            self._log.trouble(
                TimeoutError(f"{len(self._runner.attempts)} jobs did not finish within {limit:g} s")
            )
        self._send_back()
        if not await self._within(HAND_BACK_SECONDS, self._pump.drained()):
            self._runner.give_up_all()
            await self._within(LAST_SECONDS, self._pump.drained())

    @staticmethod
    async def _within(seconds: float, step: Any) -> bool:
        try:
            await asyncio.wait_for(step, seconds)
        except TimeoutError:
            return False
        return True

    def _send_back(self) -> None:
        self._runner.cancel_all(lambda job_id: StoppedByWorker(f"the worker stops; job {job_id} goes back"))

    async def _close_all(self) -> None:
        # Connections first: a call to a server that is silent must not hold up the end.
        self._reconnector.end()
        await self._source.close()
        await self._release()
        await self._pump.close()
        await self._sweeper.stop()
        await asyncio.to_thread(self._keeper.stop)
        await self._runner.close()
        for executor in self._executors.values():
            await executor.close()

    def _set_state(self, state: WorkerState) -> None:
        if state is not self.state:
            self.state = state
            self._log.state(state.value)

    async def run(self) -> None:
        """Runs until stopped, signalled or cancelled; raises if Redis stayed away for longer than allowed."""
        with signals_caught(self._begin_stop, functools.partial(self._begin_stop, 0.0)):
            try:
                await self.start()
                await self._stopped.wait()
            except Closed:
                if not self._abandoned:
                    raise
            except asyncio.CancelledError:
                await self.stop()
                raise
        await self._callbacks.settle()
        if self._failure is not None:
            raise self._failure

    def _begin_stop(self, timeout: float | None = None) -> None:
        task = asyncio.ensure_future(self.stop(timeout))
        task.add_done_callback(_say_nothing)

    async def run_until_idle(self) -> None:
        """Runs until nothing is waiting, active or due for a retry."""
        await self.start()
        while not self._stopped.is_set():
            if self._pump.hungry and not await self._busy():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), IDLE_GLANCE)
        if self._failure is not None:
            raise self._failure

    async def _busy(self) -> bool:
        try:
            return await self._busy_elsewhere()
        except StoreUnavailable:
            return True  # whether the server comes back is for the pump to find out

    async def wait_stopped(self) -> None:
        """Returns when the worker has stopped."""
        await self._stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- while it runs --------------------------------------------------------------------------------------

    @property
    def concurrency(self) -> int:
        """How many jobs may run at once; may be changed while the worker runs."""
        return self._pump.concurrency if self.state is not WorkerState.STOPPED else self.options.concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        replace(self.options, concurrency=value)  # checked like the option itself
        if self.state is WorkerState.STOPPED:
            raise Closed("the worker is stopped: give concurrency when you make it")
        for executor in self._executors.values():
            executor.resize(value)
        self._pump.set_concurrency(value)

    @property
    def is_paused(self) -> bool:
        """Whether this worker (not the queue) takes no jobs."""
        return self._paused

    async def pause(self, *, wait: bool = True) -> None:
        """Takes no more jobs until `resume`; returns when those in hand are done, unless told not to wait."""
        self._paused = True
        if self.state is not WorkerState.STOPPED:
            self._pump.hold()
            self._resumed.clear()
            await self._unless_resumed(self._pump.stop_waiting())
            if wait:
                await self._unless_resumed(self._pump.drained())
        self._callbacks.tell("paused")

    async def _unless_resumed(self, step: Coroutine[Any, Any, None]) -> None:
        """Waits for a step, or until somebody resumes or stops the worker: then the step may take for ever."""
        steps = [asyncio.ensure_future(one) for one in (step, self._resumed.wait(), self._stopped.wait())]
        try:
            await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in steps:
                one.cancel()

    def resume(self) -> None:
        """Takes jobs again after `pause`."""
        self._paused = False
        self._resumed.set()
        if self.state in (WorkerState.RUNNING, WorkerState.DISCONNECTED):
            self._pump.start()
        self._callbacks.tell("resumed")

    def cancel(self, job_id: str, reason: str = "cancelled") -> bool:
        """Stops a job of this worker; it fails with `JobCancelled`. False when it is not in hand."""
        if self.state is WorkerState.STOPPED:
            return False
        return self._runner.cancel(job_id, JobCancelled(job_id, reason))

    def on(self, event: WorkerEvent, callback: Callback) -> Callback:
        """Calls `callback` whenever `event` happens in this worker."""
        self._callbacks.add(event, callback)
        return callback

    def off(self, event: WorkerEvent, callback: Callback) -> None:
        self._callbacks.remove(event, callback)

    # --- what happens to jobs -------------------------------------------------------------------------------

    def _work_of(self, delivery: Any) -> Work:
        return Work(
            queue=self.queue,
            worker_id=self.id,
            job_id=delivery.id,
            name=delivery.name,
            attempts_made=delivery.attempts_made,
            carrier=self._carrier_of(delivery),
        )

    def _on_attempt_start(self, attempt: Attempt) -> None:
        self._witness.started(attempt, self._waited(attempt.delivery) if self._witness.measured else None)

    def _on_attempt_end(self, attempt: Attempt, outcome: Outcome) -> None:
        seconds = self._witness.ended(attempt)
        self._pump.settle(Settled(attempt.delivery, outcome, (attempt, seconds)))

    # --- what the services say ------------------------------------------------------------------------------

    def _from_keeper(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A callback of the keeper's thread, brought into the loop."""

        def carry(*values: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closing
                self._loop.call_soon_threadsafe(step, *values)

        return carry

    def _on_lost(self, deliveries: Sequence[Any]) -> None:
        for delivery in deliveries:
            # A job that ended meanwhile gave its lock back by itself.
            attempt = self._runner.attempts.get(id(delivery))
            if attempt is not None and not delivery.lock_lost:
                self._witness.lock_lost(attempt)

    def _on_heartbeat_error(self, error: BaseException, jobs: int) -> None:
        if jobs:
            self._witness.heartbeat_failed([delivery.id for delivery in self._pump.in_hand()], error)

    def _glance(self, deliveries: Sequence[Any]) -> None:
        """In the keeper's thread: did anybody ask for one of our jobs to stop?"""
        source: Any = self._source
        for delivery, why in source.cancelled(deliveries):
            self._from_keeper(self.cancel)(delivery.id, why)

    def _on_sweep_error(self, error: BaseException) -> None:
        # While Redis is away the reconnector speaks; a second voice would only repeat it.
        if not isinstance(error, StoreUnavailable):
            self._witness.trouble(error)

    async def _on_disconnect(self, trouble: TorilError) -> None:
        if self.state is WorkerState.RUNNING:
            self._set_state(WorkerState.DISCONNECTED)
            self._callbacks.tell("disconnected", trouble)
        self._metrics.set_redis_connection_status(False)
        if await self._reconnector.restore(trouble):
            return
        if self.state is WorkerState.DISCONNECTED:
            self._failure = trouble
            self._begin_stop()
        # Nothing more can be handed in: what is in hand will be recovered as stalled.
        await asyncio.sleep(IDLE_GLANCE)

    def _on_answer(self) -> None:
        if self._reconnector.attempts == 0 and self.state is not WorkerState.DISCONNECTED:
            return
        away = self._reconnector.answered()
        if self.state is WorkerState.DISCONNECTED:
            self._set_state(WorkerState.RUNNING)
            self._callbacks.tell("reconnected", away or 0.0)
        self._metrics.set_redis_connection_status(True)

    def _figures(self) -> dict[str, Any]:
        """What the worker reports of itself at every heartbeat."""
        return {
            "state": self.state.value,
            "concurrency": self._pump.concurrency,
            "jobs": len(self._pump.running),
            "processed": self.processed,
            "failed": self.failed,
            "heartbeats_ok": self._keeper.ok,
            "heartbeats_failed": self._keeper.failed,
            "sweeps_done": self._sweeper.done,
            "sweeps_skipped": self._sweeper.skipped,
            "memory": resident_bytes(),
            "threads": threading.active_count(),
            "uptime": round(time.monotonic() - _STARTED, 1),
        }


_STARTED = time.monotonic()


def _say_nothing(task: asyncio.Future[None]) -> None:
    """The stop itself logs its troubles; asking for the result keeps asyncio quiet."""
    if not task.cancelled():
        task.exception()
