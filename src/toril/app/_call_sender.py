"""How the calls of an app become jobs: `QueueCallSender` adds them to queues. Tests replace it.

Guarantee: the jobs are returned in the order of the calls. Calls of one queue are sent in one step.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from toril.app._children import Children, with_children_field
from toril.app._envelope_job import WHY, record_of
from toril.app._producers import Producers
from toril.app.call import TaskCall
from toril.app.composition import CallNode
from toril.errors import InvalidOption, JobNotFound
from toril.jobs import DetachedJob, DetachedState, Job
from toril.producer import FlowNode, ListQueue, Queue, StreamQueue
from toril.protocol.codec import to_json
from toril.protocol.options import ON_FAILURE, JobOptions, NewJob, merge
from toril.protocol.queue_name import QueueName
from toril.protocol.state import JobState

# How often the result of a job of a list or stream queue is read: it has no events to wait for.
POLL_SECONDS: Final = 0.1
_ENVELOPE_OPTIONS: Final = ("attempts", "delay", "job_id")

AnyJob = Job


class CallSender(Protocol):
    """Where calls go."""

    async def send(self, calls: Sequence[TaskCall]) -> list[AnyJob]:
        """Enqueues calls; returns their jobs in the same order."""

    async def send_flow(self, root: CallNode) -> list[AnyJob]:
        """Enqueues calls that depend on each other; returns their jobs in the order of `CallNode.walk`."""


class QueueCallSender:
    """Adds jobs to queues on the server."""

    def __init__(self, producers: Producers) -> None:
        self._producers = producers

    async def send(self, calls: Sequence[TaskCall]) -> list[AnyJob]:
        if len(calls) == 1:
            return [await self._add_one(calls[0])]
        places: dict[QueueName, list[int]] = {}
        for place, call in enumerate(calls):
            places.setdefault(call.task.queue, []).append(place)
        jobs: dict[int, AnyJob] = {}
        for queue, own in places.items():
            added = await self._add_all(queue, [calls[place] for place in own])
            jobs.update(zip(own, added, strict=True))
        return [jobs[place] for place in range(len(calls))]

    async def send_flow(self, root: CallNode) -> list[AnyJob]:
        prefix, hash_tag = self._producers.layout(root.call.task.queue)
        added = await self._producers.flows(prefix, hash_tag).add(self._flow_node(root))
        jobs = {job.id: job for job in added.walk()}
        return [typed(jobs[node.job_id], node.call) for node in root.walk()]

    def _flow_node(self, node: CallNode) -> FlowNode:
        call = node.call
        queue = self._producers.bullmq(call.task.queue, "a flow")
        data = call.data
        if node.argument is not None:
            keys = [self._producers.job_key(child.call.task.queue, child.job_id) for child in node.children]
            data = with_children_field(data, Children(argument=node.argument, keys=keys, many=node.many))
        return FlowNode(
            call.task.name,
            queue=queue.name,
            data=msgspec.Raw(data),
            options=call.options,
            children=[self._failing_parent(self._flow_node(child)) for child in node.children],
        )

    @staticmethod
    def _failing_parent(child: FlowNode) -> FlowNode:
        """A child whose failure fails its parent, unless its options say something else."""
        options = child.options or JobOptions()
        if any(getattr(options, name) for name in ON_FAILURE):
            return child
        return dataclasses.replace(child, options=merge(options, {"fail_parent_on_failure": True}))

    async def _add_one(self, call: TaskCall) -> AnyJob:
        queue = self._producers.queue(call.task.queue)
        if not isinstance(queue, Queue):
            return await _add_envelope(queue, call)
        added = await queue.add(call.task.name, msgspec.Raw(call.data), **call.options.given_fields())
        return typed(added, call)

    async def _add_all(self, name: QueueName, calls: Sequence[TaskCall]) -> list[AnyJob]:
        queue = self._producers.queue(name)
        if not isinstance(queue, Queue):
            return list(await asyncio.gather(*(_add_envelope(queue, one) for one in calls)))
        jobs = [NewJob(one.task.name, msgspec.Raw(one.data), one.options) for one in calls]
        added = await queue.add_bulk(jobs)
        return [typed(job, call) for job, call in zip(added, calls, strict=True)]


def typed(job: AnyJob, call: TaskCall) -> AnyJob:
    """The job, whose result has the type that its task returns."""
    codec = call.task.result_codec
    if codec is not None:
        job.set_result_codec(codec)
    return job


async def _add_envelope(queue: ListQueue | StreamQueue, call: TaskCall) -> AnyJob:
    options = call.options.given_fields()
    for name in options:
        if name not in _ENVELOPE_OPTIONS:
            problem = f"is not an option of jobs in {call.task.queue}"
            raise InvalidOption(name, problem, f"options are {', '.join(_ENVELOPE_OPTIONS)}")
    if "attempts" in options:
        options["max_attempts"] = options.pop("attempts")
    envelope = await queue.add(call.task.name, msgspec.json.decode(call.data), **options)
    state: DetachedState = DetachedState(state=JobState.UNKNOWN, why=WHY)
    state.wait = functools.partial(_result, queue, envelope.job_id)
    return typed(DetachedJob(record_of(envelope), queue.name, state), call)


async def _result(queue: ListQueue | StreamQueue, job_id: str, timeout: float | None) -> bytes | None:
    """Reads the result until it is there: workers of the queue must keep results (`keep_results`)."""
    try:
        async with asyncio.timeout(timeout):
            while True:
                try:
                    return to_json(await queue.result(job_id))
                except JobNotFound:
                    await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise TimeoutError(
            f"job {job_id} has no result after {timeout:g} s: no worker has finished it, or the workers of "
            f"{queue.name} do not keep results; keep them with app.queue(…, keep_results=3600)"
        ) from None
