"""Inline mode: `enqueue` runs the task at once, in this process and without a server.

Guarantee: arguments and results make the round trip through JSON; middleware, dependencies, error rules and attempts
are those of a worker. Delays are not waited for, neither those of jobs nor those between attempts. A failure is raised
by `result()`, not by `enqueue`.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from toril.app._call_sender import AnyJob, typed
from toril.app._children import Children, with_children_field
from toril.app.call import TaskCall
from toril.app.composition import CallNode
from toril.app.resources import Resources
from toril.errors import Detached, JobFailed, JobTimedOut
from toril.jobs import DetachedJob, DetachedState
from toril.jobs.detached import blocking_form, detached_record
from toril.protocol.backoff import Backoff, call_backoff
from toril.protocol.codec import from_json, to_json
from toril.protocol.outcome import (
    Completed,
    Failed,
    Outcome,
    Retry,
    Undecided,
    WaitingForChildren,
    decide_outcome,
    no_retry,
)
from toril.protocol.state import JobState
from toril.protocol.worker_options import WorkerOptions
from toril.worker import ConfiguredHandler, Returned

if TYPE_CHECKING:
    from toril.app.app import App

_WHY: Final = "it was run inline"
# A task that postpones itself for ever would not end: this often it may, with an attempt or without.
MOST_RUNS: Final = 1000


class InlineJob(DetachedJob):
    """The job of a call that is run inline. `children` are the results of calls before it, by their keys."""

    __slots__ = ("children",)

    def __init__(self, call: TaskCall, job_id: str, data: bytes, children: dict[str, Any]) -> None:
        record = detached_record(call.task.name, data, job_id=job_id, options=call.options)
        super().__init__(record, call.task.queue.name, DetachedState(why=_WHY))
        self.children = children

    async def get_children_values(self) -> dict[str, Any]:
        return self.children

    def count_attempt(self) -> None:
        """One more attempt has ended."""
        self._change(atm=b"%d" % (self.attempts_made + 1))


class _ThreadExecutor:
    """The executor of plain functions: a thread of the event loop, also for tasks that have processes in a worker."""

    def __init__(self, handler: ConfiguredHandler) -> None:
        self._function = handler.function

    async def call(self, value: Any) -> Returned:
        argument = blocking_form(value) if isinstance(value, DetachedJob) else value
        result = await asyncio.to_thread(self._function, argument)
        if inspect.isawaitable(result):
            result = await result
        return Returned(result, to_json(result, field="result"))

    def blocking_job(self, job: DetachedJob) -> Any:
        return blocking_form(job)


class InlineCallSender:
    """Runs calls instead of sending them."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def send(self, calls: Sequence[TaskCall]) -> list[AnyJob]:
        return [
            await self._run(call, call.options.job_id or uuid.uuid4().hex, call.data, {}) for call in calls
        ]

    async def send_flow(self, root: CallNode) -> list[AnyJob]:
        results: dict[str, Any] = {}
        jobs: list[AnyJob] = []
        for node in root.walk():
            before = {
                child.job_id: results[child.job_id] for child in node.children if child.job_id in results
            }
            if len(before) < len(node.children):
                jobs.append(self._failed_before(node))
                continue
            data = node.call.data
            if node.argument is not None:
                keys = [child.job_id for child in node.children]
                data = with_children_field(data, Children(argument=node.argument, keys=keys, many=node.many))
            job = await self._run(node.call, node.job_id, data, before)
            jobs.append(job)
            if job.detached.state is JobState.COMPLETED:
                results[node.job_id] = from_json(job.record.fields[b"returnvalue"])
        return jobs

    def _failed_before(self, node: CallNode) -> InlineJob:
        job = InlineJob(node.call, node.job_id, node.call.data, {})
        _set_failed(job, f"a child of job {node.job_id} failed", "", None)
        return job

    async def _run(self, call: TaskCall, job_id: str, data: bytes, children: dict[str, Any]) -> InlineJob:
        job = InlineJob(call, job_id, data, children)
        async with self._app.current_resources() as resources:
            await self._attempts(call, job, resources)
        typed(job, call)
        return job

    async def _attempts(self, call: TaskCall, job: InlineJob, resources: Resources) -> None:
        handler = self._app.runner(call.task, resources).handler()
        options = handler.options(self._app.worker_options(call.task.queue))
        for _ in range(MOST_RUNS):
            try:
                outcome: Outcome = Completed(await _attempt(handler, options, job))
            except Exception as error:  # whatever a task raises is the outcome of its job
                outcome = await _decided(error, job, options)
            job.count_attempt() if isinstance(outcome, Completed | Failed | Retry) else None
            match outcome:
                case Completed(value):
                    return _set_completed(job, value)
                case Failed():
                    return _set_failed(job, outcome.reason, outcome.stacktrace, outcome.error)
                case WaitingForChildren():
                    raise Detached(job.id, "a task cannot wait for children inline")
                case _:
                    continue  # another attempt, without waiting
        return _set_failed(job, f"it was run {MOST_RUNS} times without an end", "", None)


async def _attempt(handler: ConfiguredHandler, options: WorkerOptions, job: InlineJob) -> bytes:
    """One attempt; returns the result as JSON."""
    seconds = options.job_timeout
    try:
        async with asyncio.timeout(seconds) as limit:
            called = (
                handler.function(job)
                if handler.around is None
                else handler.around(job, _ThreadExecutor(handler))
            )
            result = await called
    except TimeoutError:
        if seconds is None or not limit.expired():
            raise
        raise JobTimedOut(job.id, seconds) from None
    return to_json(result.value if isinstance(result, Returned) else result, field="result")


async def _decided(error: Exception, job: InlineJob, options: WorkerOptions) -> Outcome:
    outcome = decide_outcome(
        error,
        attempts_made=job.attempts_made,
        max_attempts=job.max_attempts,
        backoff=Backoff.from_wire(job.opts.get("backoff")),
        options=options,
    )
    if not isinstance(outcome, Undecided):
        return outcome
    try:
        given = call_backoff(outcome.function, outcome.attempts_made, outcome.error, job)
        return outcome.decided(await given if inspect.isawaitable(given) else given)
    except Exception as problem:  # whatever a function of the application raises
        return no_retry(error, problem)


def _set_completed(job: InlineJob, value: bytes) -> None:
    job.detached.state = JobState.COMPLETED
    job.set_local_field("returnvalue", value)

    async def wait(_timeout: float | None) -> bytes | None:
        return value

    job.detached.wait = wait


def _set_failed(job: InlineJob, reason: str, stacktrace: str, error: BaseException | None) -> None:
    job.detached.state = JobState.FAILED
    job.set_local_field("failedReason", reason.encode())

    async def wait(_timeout: float | None) -> bytes | None:
        raise JobFailed(job.id, reason, [stacktrace] if stacktrace else []) from error

    job.detached.wait = wait
