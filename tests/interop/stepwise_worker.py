"""A real worker whose attempts are started by a test; its own runtime does what follows from a handler's end."""

from __future__ import annotations

import logging
from typing import Any

from tests.interop.adapters import NO_RULES, QUEUE, Rules
from toril import Job, ParentRef, Worker
from toril.backends.bullmq import BullmqBackend, BullmqDelivery
from toril.errors import WaitingChildrenError
from toril.protocol.worker_options import RateLimit
from toril.transport.clock import ServerClock
from toril.worker._bullmq_adapter import BullmqAdapter
from toril.worker._runtime import WorkerRuntime

_SILENT = logging.getLogger("tests.interop.silent")
_SILENT.setLevel(logging.CRITICAL + 1)


class StepwiseWorker(Worker):
    """Fetches no jobs, renews no locks and runs no sweeps: it runs the deliveries that it is given."""

    def __init__(self, url: str, clock: ServerClock, rules: Rules = NO_RULES) -> None:
        limit = rules.limiter
        super().__init__(
            QUEUE,
            self._handle,
            redis=url,
            hash_tag=False,
            backoff_jitter=0,
            rate_limit=None if limit is None else RateLimit(limit["max"], limit["duration"] / 1000),
            metrics_minutes=rules.metrics,
            logger=_SILENT,  # many jobs are made to fail
        )
        self._given_clock = clock
        self.runtime: WorkerRuntime[BullmqDelivery]
        self._plan: dict[str, Any] = {}
        self._reports: list[dict[str, Any]] = []
        self.on("completed", lambda job, _: self._report_end("completed", job))
        self.on("failed", lambda job, _: self._report_end("failed", job))
        self.on("retrying", lambda job, *_: self._report_end("failed", job))  # Node has one name for both
        self.on("error", lambda error: self._reports.append({"what": "error", "reason": str(error)}))

    async def open(self) -> None:
        self.runtime = self._lifecycle.make_runtime()
        assert isinstance(self.runtime.backend, BullmqBackend)
        assert isinstance(self._adapter, BullmqAdapter)
        self.runtime.backend.transport.clock = self._adapter._calls.transport.clock = self._given_clock
        await self.runtime.backend.open()

    async def close(self) -> None:
        await self.runtime.stop()

    async def attempt(self, delivery: BullmqDelivery, **plan: Any) -> list[dict[str, Any]]:
        """Runs one delivery to its end. Returns what the callbacks received."""
        self._plan, self._reports = plan, []
        fetch_loop = self.runtime.fetch_loop
        fetch_loop.running[id(delivery)] = delivery
        fetch_loop._drained.clear()
        self.runtime.runner.start(delivery, alone=True)
        await fetch_loop.wait_drained()
        return self._reports

    async def _handle(self, job: Job[Any]) -> Any:
        """Returns a value; a handler that waits asks first, as in the documented pattern."""
        if self._plan["waits"]:
            child = self._plan["child"]
            named = None if child is None else ParentRef(child, self.keys.qualified)
            if await job.move_to_waiting_children(named):
                raise WaitingChildrenError
        return self._plan["value"]

    def _report_end(self, what: str, job: Job[Any]) -> None:
        finished = job.record.finished_on_ms
        view = {
            "id": job.id,
            "attempts_made": job.attempts_made,
            "returnvalue": None if _is_falsy(job.returnvalue) else job.returnvalue,
            "failed_reason": job.failed_reason or None,  # Node reads an empty one as none
            "finished_on": finished,
            "delay": job.record.delay_ms,
            "traces": len(job.stacktrace),
        }
        self._reports.append({"what": what, "job": view})


def _is_falsy(value: Any) -> bool:
    """As in JavaScript, where Node's worker keeps no such value in its job object; empty lists and objects are kept."""
    return isinstance(value, bool | int | float | str | None) and not value
