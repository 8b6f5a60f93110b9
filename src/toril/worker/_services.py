"""The services of a worker, wired together, and what they tell each other.

Guarantee: each service knows only the functions that it was given; whatever comes from the keeper's thread is brought
into the event loop here, and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toril.backends.base import FinishedJob, Source
from toril.errors import (
    Closed,
    FailedChildren,
    JobCancelled,
    LockLapsed,
    PendingChildren,
    RedisUnavailable,
    TorilError,
)
from toril.protocol.outcome import Outcome, Requeued, UnknownName
from toril.protocol.worker_options import WorkerOptions, new_worker_id
from toril.telemetry.hooks import Work
from toril.transport import Address, ConnectionPolicy
from toril.worker._attempt_runner import Attempt, AttemptRunner
from toril.worker._events import Callbacks
from toril.worker._executors import Executor, Handler, LoopExecutor, ThreadExecutor, choose
from toril.worker._fetch_loop import FetchLoop
from toril.worker._handlers import by_name
from toril.worker._job_adapter import JobAdapter
from toril.worker._lock_renewer import LockRenewer
from toril.worker._log import WorkerLog
from toril.worker._observer import WorkerObserver
from toril.worker._process_stats import resident_bytes
from toril.worker._reconnect import Reconnector
from toril.worker._safe_metrics import safe_metrics
from toril.worker._stalled_sweeper import StalledSweeper

_STARTED = time.monotonic()
# A pump that asks again while the worker is already stopping must not do so in a tight loop.
PAUSE_WHILE_STOPPING = 0.05
# A worker that meets jobs of names that others know takes none for so long: refusing is faster than working, and those
# others would find the queue empty. Longer than the jobs are delayed, so that others ask for them first.
LEAVE_TO_OTHERS = 0.3
# How often a worker that refuses jobs looks whether others know their names by now.
NAMES_SECONDS = 1.0


class WorkerState(enum.Enum):
    """Where a worker is in its life."""

    STOPPED = "stopped"
    RUNNING = "running"
    DISCONNECTED = "disconnected"
    SHUTTING_DOWN = "shutting down"


class WorkerServices(JobAdapter):
    """Everything that works inside a worker."""

    _address: Address  # of the server
    _source: Source
    _loop: asyncio.AbstractEventLoop
    _executors: dict[str | None, Executor]

    def __init__(
        self,
        queue: str,
        handler: Handler | Mapping[str, Handler],
        options: WorkerOptions,
        policy: ConnectionPolicy,
    ) -> None:
        self.queue = queue
        self.policy = policy
        self.label = f"{self.kind}:{queue}" if self.kind != "bullmq" else queue  # how metrics name the queue
        self.options = options
        self.id = options.worker_id or new_worker_id()
        self.state = WorkerState.STOPPED
        self._handlers = by_name(handler)
        for one in self._handlers.values():
            choose(one, options.executor)  # refuses a wish that cannot be met
        self._log = WorkerLog(
            options.logger, worker_id=self.id, queue=self.label, payloads=options.log_payloads
        )
        self._metrics = safe_metrics(options.metrics, self._log.trouble)
        self._callbacks = Callbacks(self._log.trouble)
        self._observer = WorkerObserver(self.label, self._metrics, self._log, self._callbacks, self._after)
        self._failure: TorilError | None = None
        self._asked_names = -math.inf  # when we last looked which names other workers know
        self._back_at = -math.inf  # when the server last answered again after an outage

    def _begin_stop(self, timeout: float | None = None) -> None:
        """Stops the worker without waiting for it."""
        raise NotImplementedError

    def _is_torn_down(self) -> bool:
        """Whether the event loop is being ended around the worker."""
        raise NotImplementedError

    def _set_state(self, state: WorkerState) -> None:
        if state is not self.state:
            self.state = state
            self._log.state(state.value)

    # --- wiring ---------------------------------------------------------------------------------------------

    @property
    def _names(self) -> tuple[str, ...]:
        """The job names that this worker announces to others."""
        return tuple("*" if name is None else name for name in self._handlers)

    def _is_known_elsewhere(self, name: str) -> bool:
        known = self._source.known_names
        return name in known or "*" in known

    @property
    def _own_policy(self) -> ConnectionPolicy:
        """For the worker's own connections: calls fail at once, and the worker reconnects by itself."""
        return replace(self.policy, call_attempts=1)

    def _make_executors(self) -> dict[str | None, Executor]:
        made: dict[str | None, Executor] = {}
        for name, handler in self._handlers.items():
            match choose(handler, self.options.executor):
                case "async":
                    made[name] = LoopExecutor(handler)
                case "process":
                    made[name] = self._make_process_executor(handler)
                case _:
                    made[name] = ThreadExecutor(handler, self._encode())
        return made

    def _wire_up(self) -> None:
        self._wire_work()
        self._wire_upkeep()

    def _wire_work(self) -> None:
        """What moves jobs."""
        options = self.options
        self._runner = AttemptRunner(
            executors=self._executors,
            options=options,
            make_job=self._make_job,
            backoff_of=self._backoff_of,
            encode=self._encode(),
            reject_reason=self._reject_reason,
            on_start=self._on_attempt_start,
            on_end=self._on_attempt_end,
            work_of=self._work_of,
            on_error=self._observer.trouble,
            now_ms=self._now_ms,
            torn_down=self._is_torn_down,
            known_elsewhere=self._is_known_elsewhere,
        )
        self._fetch_loop = FetchLoop(
            self._source,
            concurrency=options.concurrency,
            drain_delay=float(options.drain_delay),
            run=self._runner.start,
            on_ack_error=self._on_verdict,
            on_settled=self._observer.settled,
            on_disconnect=self._on_disconnect,
            on_error=self._observer.trouble,
            on_drained=functools.partial(self._callbacks.tell, "drained"),
            on_answer=self._on_answer,
        )

    def _wire_upkeep(self) -> None:
        """What watches over them."""
        options = self.options
        self._keeper = LockRenewer(
            self._source,
            interval=float(options.heartbeat_interval),
            in_hand=self._in_hand,
            on_beat=self._observer.beat,
            on_lost=self._from_keeper(self._on_lost),
            on_error=self._on_heartbeat_error,
            glance=self._glance if hasattr(self._source, "cancelled") else None,
            figures=self._figures,
        )
        self._sweeper = StalledSweeper(
            self._source,
            interval=float(options.stalled_check_interval),
            on_stalled=self._observer.stalled,
            on_skipped=self._observer.sweep_skipped,
            on_error=self._on_sweep_error,
            may_begin=self._may_sweep,
        )
        self._reconnector = Reconnector(
            self._source.open,
            policy=self._own_policy,
            log=self._log,
            on_attempt=self._metrics.increment_redis_reconnect_attempts,
        )

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
        if self._observer.is_observed or "active" in self._callbacks.listeners:
            waited = self._waited(attempt.delivery) if self._observer.measured else None
            self._observer.started(attempt, waited)

    def _on_attempt_end(self, attempt: Attempt, outcome: Outcome) -> None:
        ended_now = attempt.ended is None  # an attempt whose outcome was refused ends a second time
        attempt.ended = attempt.ended or time.monotonic()
        if ended_now and not isinstance(outcome, UnknownName):  # nothing was run, and nobody is called back
            if attempt.subject is None:
                attempt.subject = self._job_for_callbacks(attempt.delivery)
            if self._observer.measured:
                self._observer.ended(attempt)
        if type(outcome) is UnknownName:
            self._after_refusal(outcome, attempt.ended)
        if type(outcome) is Requeued and self._is_torn_down():
            self._fetch_loop.begin_returning()
        self._fetch_loop.settle(FinishedJob(attempt.delivery, outcome, attempt))

    def _after_refusal(self, outcome: UnknownName, now: float) -> None:
        if outcome.is_known_elsewhere:
            self._fetch_loop.rest(LEAVE_TO_OTHERS)
        elif now - self._asked_names >= NAMES_SECONDS:
            self._asked_names = now
            self._keeper.beat_soon()  # its report asks for the names of others

    def _on_verdict(self, settled: FinishedJob, error: TorilError) -> bool:
        """Whether the attempt goes on after its outcome was refused: another outcome will be handed in.

        As in Node, an attempt that cannot complete because of its children has failed, with the refusal as its error.
        """
        if isinstance(error, LockLapsed):  # the same outcome again: the source retakes the lock first
            self._loop.call_soon(self._fetch_loop.settle, settled)
            return True
        if isinstance(error, (PendingChildren, FailedChildren)):
            self._callbacks.tell("error", error)
            self._runner.fail(settled.memo, error)
            return True
        self._observer.refused(settled, error)
        return False

    # --- what the services say ------------------------------------------------------------------------------

    def _from_keeper(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A callback of the keeper's thread, brought into the loop."""

        def carry(*values: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closing
                self._loop.call_soon_threadsafe(step, *values)

        return carry

    def _in_hand(self) -> Sequence[Any]:
        """In the keeper's thread: jobs whose locks must be kept."""
        if self._loop.is_closed():
            self._keeper.leave()  # torn down around us: nobody will finish these jobs
            return ()
        return self._fetch_loop.in_hand()

    def _on_lost(self, deliveries: Sequence[Any]) -> None:
        # A job that ended meanwhile, or waits for its children now, gave its lock back by itself.
        found = [self._runner.attempts.get(id(one)) for one in deliveries if not one.lock_lost]
        self._observer.locks_lost(
            [one for one in found if one and not getattr(one.subject, "waits_for_children", False)]
        )

    def _on_heartbeat_error(self, error: BaseException, jobs: int) -> None:
        if jobs:
            self._observer.heartbeat_failed([delivery.id for delivery in self._fetch_loop.in_hand()], error)

    def _glance(self, deliveries: Sequence[Any]) -> None:
        """In the keeper's thread: did anybody ask for one of our jobs to stop?"""
        source: Any = self._source
        for delivery, why in source.cancelled(deliveries):
            self._from_keeper(self._cancel_job)(delivery.id, why)

    def _cancel_job(self, job_id: str, reason: str) -> bool:
        if self.state is WorkerState.STOPPED:
            return False
        return self._runner.cancel(job_id, JobCancelled(job_id, reason))

    def _may_sweep(self) -> bool:
        """Whether locks of living workers can be told from those of dead ones: an outage lets all of them run out.

        Our own are retaken by the first heartbeat that succeeds; other workers have one heartbeat's time for theirs.
        """
        interval = float(self.options.heartbeat_interval)
        now = time.monotonic()
        if self.state is WorkerState.STOPPED:
            return True  # it has renewed nothing yet
        if (
            self._keeper.behind
            or self.state is WorkerState.DISCONNECTED
            or now - max(self._back_at, self._keeper.recovered) < interval
        ):
            return False
        if not self._fetch_loop.in_hand():
            return True
        if now - self._keeper.renewed < max(float(self.options.lock_duration), 1.5 * interval):
            return True
        self._keeper.beat_soon()
        return False

    def _on_sweep_error(self, error: BaseException) -> None:
        # While Redis is away the reconnector speaks; a second voice would only repeat it. What our own end closed is
        # no trouble at all.
        if not isinstance(error, (RedisUnavailable, Closed)):
            self._observer.trouble(error)

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
        await asyncio.sleep(PAUSE_WHILE_STOPPING)

    def _on_answer(self) -> None:
        self._observer.look()
        if self._reconnector.attempts == 0 and self.state is not WorkerState.DISCONNECTED:
            return
        away = self._reconnector.answered()
        if self.state is WorkerState.DISCONNECTED:
            self._back_at = time.monotonic()
            self._keeper.beat_soon()
            self._set_state(WorkerState.RUNNING)
            self._callbacks.tell("reconnected", away or 0.0)
        self._metrics.set_redis_connection_status(True)

    def _figures(self) -> dict[str, Any]:
        """What the worker reports of itself at every heartbeat."""
        return {
            "state": self.state.value,
            "concurrency": self._fetch_loop.concurrency,
            "jobs": len(self._fetch_loop.running),
            "processed": self._observer.processed,
            "failed": self._observer.failed,
            "heartbeats_ok": self._keeper.ok,
            "heartbeats_failed": self._keeper.failed,
            "sweeps_done": self._sweeper.done,
            "sweeps_skipped": self._sweeper.skipped,
            "memory": resident_bytes(),
            "threads": threading.active_count(),
            "uptime": round(time.monotonic() - _STARTED, 1),
        }
