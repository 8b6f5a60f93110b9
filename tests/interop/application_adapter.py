"""toril as applications use it, as a side: `Queue`, `FlowProducer` and the worker's own source, with a given clock.

What a handler's end means on the wire is decided by the code that workers run (`decide_outcome`, `BullmqBackend`). Lock
tokens are toril's own and differ from Node's; the comparison leaves them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.interop.adapters import NO_RULES, QUEUE, Rules, parents_of
from tests.interop.command_adapter import LOCK_MS, MAX_STALLED, SWEEP_MS, renamed
from tests.interop.node_views import Looks
from tests.interop.spelling import options_of
from tests.interop.steps import Fetched, Outcome, Step
from tests.interop.stepwise_worker import StepwiseWorker
from tests.servers import Server
from toril import (
    Backoff,
    FlowNode,
    FlowProducer,
    JobOptions,
    NewJob,
    PermanentError,
    Queue,
    TransientError,
    WorkerOptions,
)
from toril.backends.base import FinishedJob, settle_and_fetch
from toril.backends.bullmq import BullmqBackend, BullmqConfig, BullmqDelivery
from toril.commands import read
from toril.errors import ScriptFailed, ScriptRefused, TorilError
from toril.protocol.codec import to_json
from toril.protocol.duration import ms_to_datetime
from toril.protocol.outcome import Completed, Failed, Postponed, Requeued, Retry, decide_outcome
from toril.protocol.record import JobRecord
from toril.protocol.worker_options import RateLimit
from toril.transport import AsyncTransport, BlockingTransport
from toril.transport.clock import ServerClock

NO_TOKEN = "no-token"
TERMS = WorkerOptions(backoff_jitter=0.0)


class GivenClock(ServerClock):
    """A clock that stands where it was put."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        super().__init__()
        self.ms = 0

    @property
    def stale(self) -> bool:
        return False

    def now(self) -> float:
        return self.ms / 1000

    def now_ms(self) -> int:
        return self.ms


class ApplicationSide(Looks):
    """toril's own classes on a server of its own."""

    name = "toril's applications"

    def __init__(self, server: Server, rules: Rules = NO_RULES) -> None:
        self.client = server.client()
        self._url = server.url
        self._rules = rules
        self._clock = GivenClock()
        self._runner = asyncio.Runner()
        self._queue: Queue[Any] | None = None
        self._backends: dict[str, BullmqBackend] = {}  # by worker
        self._flows: FlowProducer | None = None
        self._worker: StepwiseWorker | None = None
        self._held: dict[str, BullmqDelivery] = {}
        self._tokens: dict[str, str] = {}  # by job: toril's own, which the steps do not know

    def set_clock(self, milliseconds: int) -> None:
        self._clock.ms = milliseconds

    def reset(self) -> None:
        self._run(self._close())
        self.client.flushall()
        self._run(self._open())

    def close(self) -> None:
        self._run(self._close())
        self._runner.close()
        self.client.close()

    def can(self, op: str) -> bool:
        return hasattr(self, op)

    def do(self, step: Step) -> Outcome:
        try:
            return Outcome(self._run(getattr(self, step.op)(**renamed(step.args))))
        except ScriptRefused as refusal:
            return Outcome(refused=str(refusal.code) if step.op != "obliterate" and refusal.code else "no")
        except ScriptFailed:  # upstream's `reprocessJob` raises for a child whose failure its parent ignores
            return Outcome(refused="no")

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    async def _open(self) -> None:
        self._held.clear()
        self._tokens.clear()
        self._queue = Queue(QUEUE, redis=self._url, ids="counter")
        self._queue._transport.clock = self._clock
        await self._queue.__aenter__()
        self._flows = FlowProducer(redis=self._url)
        self._flows._transport.clock = self._clock
        await self._backend("w1")
        self._worker = self._make_worker()
        await self._worker.open()

    def _make_worker(self) -> StepwiseWorker:
        return StepwiseWorker(self._url, self._clock, self._rules)

    def _config(self, worker: str) -> BullmqConfig:
        return BullmqConfig(
            worker_id=worker,
            lock_ms=LOCK_MS,
            stalled_ms=SWEEP_MS,
            max_stalled=MAX_STALLED,
            heartbeat=LOCK_MS / 2000,
            limiter=self._rules.limiter,
            metrics_size=self._rules.metrics,
        )

    async def _close(self) -> None:
        if self._queue is not None:
            for backend in self._backends.values():
                await backend.close()
                backend._renewer_transport.close()
            self._backends.clear()
            await self._queue.close()
            await self.flows.close()
        if self._worker is not None:
            await self._worker.close()
        self._queue = self._flows = self._worker = None

    @property
    def queue(self) -> Queue[Any]:
        assert self._queue is not None
        return self._queue

    @property
    def flows(self) -> FlowProducer:
        assert self._flows is not None
        return self._flows

    async def _backend(self, worker: str | None = None) -> BullmqBackend:
        name = worker or "w1"
        if (backend := self._backends.get(name)) is None:
            transport, renewer = AsyncTransport(self._url), BlockingTransport(self._url)
            backend = BullmqBackend(self.queue.keys, transport, renewer, self._config(name))
            self._backends[name], transport.clock = backend, self._clock
            await backend.open()
        return backend

    # Adding

    async def add(self, *, name: str, data: Any, opts: dict[str, Any]) -> str:
        job = await self.queue.add(name, data, **options_of(opts).given_fields())
        return job.id

    async def add_bulk(self, *, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        added = await self.queue.add_bulk([self._new(**job) for job in jobs])
        return [job.id for job in added]

    def _new(self, *, name: str, data: Any, opts: Mapping[str, Any]) -> NewJob:
        options: JobOptions = options_of(opts)
        return NewJob(name, data, options)

    async def add_flow(self, *, flow: Mapping[str, Any]) -> Any:
        return parents_of(_as_flow(await self.flows.add(_flow_node(flow))))

    async def upsert_scheduler(
        self, *, job_id: str, repeat: Mapping[str, Any], template: Mapping[str, Any]
    ) -> str | None:
        every = repeat.get("every")
        job = await self.queue.schedulers.upsert(
            job_id,
            cron=repeat.get("pattern"),
            every=None if every is None else every / 1000,
            tz=repeat.get("tz"),
            limit=repeat.get("limit"),
            start=ms_to_datetime(repeat["startDate"]) if "startDate" in repeat else None,
            end=ms_to_datetime(repeat["endDate"]) if "endDate" in repeat else None,
            immediately=repeat.get("immediately", False),
            name=template.get("name"),
            data=template["data"],
            options=options_of(template["opts"]),
        )
        return job.id

    async def remove_scheduler(self, *, job_id: str) -> bool:
        return await self.queue.schedulers.remove(job_id)

    # Working

    async def pick_up(self, *, token: str, worker: str) -> Any:
        taken = await self._exchange([], 1, worker)
        return taken[0] if taken else None

    async def complete(self, *, job_id: str, value: Any, token: str, fetch_next: bool, worker: str) -> Any:
        done = FinishedJob(await self._delivery(job_id, token), Completed(to_json(value)))
        return await self._settle(done, 1 if fetch_next else 0, worker)

    async def fail(
        self, *, job_id: str, error: Mapping[str, str], token: str, fetch_next: bool, worker: str
    ) -> Any:
        settled = await self._failed(job_id, error, token)
        # Only a finish fetches in Node; a retry does not.
        capacity = 1 if fetch_next and isinstance(settled.outcome, Failed) else 0
        return await self._settle(settled, capacity, worker)

    async def _failed(self, job_id: str, error: Mapping[str, str], token: str) -> FinishedJob[BullmqDelivery]:
        delivery = await self._delivery(job_id, token)
        kind = PermanentError if error["name"] == "UnrecoverableError" else TransientError
        outcome = decide_outcome(
            kind(error["message"]),
            attempts_made=delivery.attempts_made,
            max_attempts=delivery.max_attempts,
            backoff=Backoff.from_wire(delivery.record.opts.get("backoff")),
            options=TERMS,
        )
        # The words of the error are Node's; Python's own stack would differ by nature.
        assert isinstance(outcome, Failed | Retry)
        return FinishedJob(delivery, replace(outcome, reason=error["message"], stacktrace=error["stack"]))

    async def run_handler(
        self, *, job_id: str, token: str, value: Any, waits: bool, child: str | None
    ) -> list[dict[str, Any]]:
        assert self._worker is not None
        delivery = await self._delivery(job_id, token)
        return await self._worker.attempt(delivery, value=value, waits=waits, child=child)

    async def give_back(self, *, job_id: str, token: str) -> None:
        await self._settle(FinishedJob(await self._delivery(job_id, token), Requeued()), 0, None)

    async def postpone(self, *, job_id: str, token: str, until: int) -> None:
        delay = max(until - self._clock.ms, 0) / 1000
        await self._settle(FinishedJob(await self._delivery(job_id, token), Postponed(delay)), 0, None)

    async def exchange(
        self, *, settle: Sequence[Mapping[str, Any]], take: int, token: str, worker: str
    ) -> Any:
        ends: list[FinishedJob[BullmqDelivery]] = []
        for end in settle:
            args = renamed(end["args"])
            if end["op"] == "fail":
                ends.append(await self._failed(token=token, **args))
            else:
                delivery = await self._delivery(args["job_id"], token)
                ends.append(FinishedJob(delivery, Completed(to_json(args["value"]))))
        ack_errors: list[TorilError | None] = []
        taken = await self._exchange(ends, take, worker, ack_errors)
        refused = [str(one.code) if isinstance(one, ScriptRefused) else None for one in ack_errors]
        return {"refused": refused, "taken": taken}

    async def _settle(self, settled: FinishedJob[BullmqDelivery], capacity: int, worker: str | None) -> Any:
        ack_errors: list[TorilError | None] = []
        taken = await self._exchange([settled], capacity, worker, ack_errors)
        if ack_errors[0] is not None:
            raise ack_errors[0]
        return taken[0] if taken else None

    async def _exchange(
        self,
        settled: Sequence[FinishedJob[BullmqDelivery]],
        capacity: int,
        worker: str | None,
        ack_errors: list[TorilError | None] | None = None,
    ) -> list[dict[str, Any]]:
        backend = await self._backend(worker)
        found = await settle_and_fetch(backend, settled, capacity)
        await backend._scheduler_runs.run_pending()  # a worker does not wait for the next runs of schedulers
        if ack_errors is not None:
            ack_errors += found.ack_errors
        self._held.update((one.id, one) for one in found.deliveries)
        self._tokens.update((one.id, one.token) for one in found.deliveries)
        return [_as_taken(one) for one in found.deliveries]

    async def _delivery(self, job_id: str, token: str) -> BullmqDelivery:
        """The job as picked up, or read afresh when it was let go of; with our token, or a wrong_token's."""
        held = self._held.pop(job_id, None)
        record = held.record if held is not None else await self._record(job_id)
        return BullmqDelivery(record, self._token(job_id, token))

    async def _record(self, job_id: str) -> JobRecord:
        flat = await self.queue._transport.run(read.get_job(self.queue.keys, job_id))
        return JobRecord.from_flat(job_id, flat)

    def _token(self, job_id: str, given: str) -> str:
        return NO_TOKEN if given == NO_TOKEN else self._tokens.get(job_id, NO_TOKEN)

    async def extend_lock(self, *, job_id: str, token: str, duration: int) -> bool:
        return not await self.extend_locks(ids=[job_id], tokens=[token], duration=duration)

    async def extend_locks(self, *, ids: list[str], tokens: list[str], duration: int) -> list[str]:
        assert duration == LOCK_MS
        deliveries = [
            BullmqDelivery(JobRecord(job_id, {}), self._token(job_id, token))
            for job_id, token in zip(ids, tokens, strict=True)
        ]
        return sorted(one.id for one in (await self._backend()).renew_locks(deliveries))

    async def sweep_stalled(self) -> list[str]:
        return sorted(await (await self._backend()).sweep() or [])

    # Changing one job

    async def update_progress(self, *, job_id: str, progress: Any) -> None:
        await self.job_of(job_id).update_progress(progress)

    async def log(self, *, job_id: str, line: str, keep: int) -> int:
        return await self.queue.add_job_log(job_id, line, keep=keep)

    async def update_data(self, *, job_id: str, data: Any) -> None:
        await self.job_of(job_id).update_data(data)

    async def promote(self, *, job_id: str) -> None:
        await self.job_of(job_id).promote()

    async def change_priority(self, *, job_id: str, priority: int, lifo: bool) -> None:
        await self.job_of(job_id).change_priority(priority, lifo=lifo)

    async def change_delay(self, *, job_id: str, delay: int) -> None:
        await self.job_of(job_id).change_delay(delay / 1000)

    async def retry(self, *, job_id: str, state: Any, reset: Mapping[str, bool] | None = None) -> None:
        fields: Any = self.client.hgetall(self.queue.keys.job(job_id))
        forgotten = {f"reset_attempts_{name}": value for name, value in (reset or {}).items()}
        await self.job_of(job_id, fields).retry(state, **forgotten)

    async def remove_child_dependency(self, *, job_id: str) -> bool:
        fields: Any = self.client.hgetall(self.queue.keys.job(job_id))
        return await self.job_of(job_id, fields).remove_child_dependency()

    async def remove_unprocessed_children(self, *, job_id: str) -> None:
        await self.job_of(job_id).remove_unprocessed_children()

    async def remove(self, *, job_id: str, children: bool) -> None:
        await self.queue.remove(job_id, children=children)

    # Changing the queue

    async def pause(self) -> None:
        await self.queue.pause()

    async def resume(self) -> None:
        await self.queue.resume()

    async def drain(self, *, delayed: bool) -> None:
        await self.queue.drain(delayed=delayed)

    async def clean(self, *, grace: int, limit: int, state: str) -> list[str]:
        return sorted(await self.queue.clean(grace / 1000, limit, state))

    async def obliterate(self, *, force: bool) -> None:
        await self.queue.obliterate(force=force)

    async def retry_jobs(self, *, state: Any, count: int, before: int) -> None:
        await self.queue.retry_jobs(state=state, timestamp=ms_to_datetime(before))

    async def promote_jobs(self, *, count: int) -> None:
        await self.queue.promote_jobs()

    async def rate_limit(self, *, duration: int) -> None:
        await self.queue.rate_limit(duration / 1000)

    async def set_concurrency(self, *, concurrency: int | None) -> None:
        await self.queue.set_global_concurrency(concurrency)

    async def set_rate_limit(self, *, jobs: int | None, duration: int) -> None:
        await self.queue.set_global_rate_limit(None if jobs is None else RateLimit(jobs, duration / 1000))

    async def remove_deduplication(self, *, job_id: str) -> bool:
        return await self.queue.remove_deduplication_key(job_id)


def _flow_node(flow: Mapping[str, Any]) -> FlowNode:
    children = [_flow_node(child) for child in flow.get("children", ())]
    options = options_of(flow["opts"])
    return FlowNode(
        flow["name"], queue=flow["queueName"], data=flow["data"], options=options, children=children
    )


def _as_flow(node: Any) -> dict[str, Any]:
    return {
        "id": node.job.id,
        "queue": node.job.queue_name,
        "children": [_as_flow(one) for one in node.children],
    }


def _as_taken(delivery: BullmqDelivery) -> dict[str, Any]:
    record = delivery.record
    return Fetched(
        id=record.id,
        attempts_started=record.attempts_started,
        attempts_made=record.attempts_made,
        deferred_failure=record.deferred_failure,
    ).as_value()
