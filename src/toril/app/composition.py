"""Calls that depend on each other, as flows: `chain`, `parallel`, `parallel_then`.

    job = await chain(fetch.bind(url), parse, store).enqueue()               # each gets the result of the one before
    jobs = await parallel(resize.bind(1), resize.bind(2)).enqueue()          # jobs.result(): the list of results
    job = await parallel_then([page.bind(n) for n in range(9)], merge).enqueue()    # merge(list of results)

Guarantee: a chain, and the jobs of `parallel_then`, are added completely or not at all, as one BullMQ flow: the last
task is the parent, and runs when its children have completed. If one fails for good, those after it fail, too.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, TypeAlias, TypeVar, overload

from toril.app.call import TaskCall
from toril.app.task import Task
from toril.errors import InvalidOption
from toril.jobs import Job
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.json_types import JsonObject

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Step: TypeAlias = Task[Concatenate[A, ...], Coroutine[Any, Any, B]] | TaskCall[B]
"""A task whose first argument is the result of the step before, or a call with all its arguments."""

AnyStep: TypeAlias = Task | TaskCall


@dataclass(frozen=True, slots=True)
class CallNode:
    """A call with the calls that run before it. `argument` gets their results."""

    call: TaskCall
    job_id: str
    children: tuple[CallNode, ...] = ()
    argument: str | None = None
    many: bool = False

    def walk(self) -> Iterator[CallNode]:
        """This call and all before it, the first to run first."""
        for child in self.children:
            yield from child.walk()
        yield self


@dataclass(frozen=True, slots=True)
class Composition(Generic[R_co]):
    """Calls that are enqueued together; its result is that of the last."""

    root: CallNode

    async def enqueue(self) -> Job[JsonObject, R_co]:
        """Adds all jobs; returns the last one."""
        return await self.root.call.task.app.enqueue_flow(self.root)


@overload
def chain(first: TaskCall[A], second: Step[A, B], /) -> Composition[B]: ...
@overload
def chain(first: TaskCall[A], second: Step[A, B], third: Step[B, C], /) -> Composition[C]: ...
@overload
def chain(
    first: TaskCall[A], second: Step[A, B], third: Step[B, C], fourth: Step[C, D], /
) -> Composition[D]: ...
@overload
def chain(
    first: TaskCall[A], second: Step[A, B], third: Step[B, C], fourth: Step[C, D], fifth: Step[D, E], /
) -> Composition[E]: ...
@overload
def chain(first: TaskCall, /, *others: AnyStep) -> Composition[Any]: ...
def chain(first: TaskCall, /, *others: AnyStep) -> Composition[Any]:
    """Runs one call after another. A step that is a task gets the result of the one before as its first argument."""
    node = _leaf(first)
    for step in others:
        node = _after(step, (node,), many=False)
    return Composition(node)


@overload
def parallel_then(
    calls: Iterable[TaskCall[A]], then: Task[Concatenate[list[A], ...], Coroutine[Any, Any, R]]
) -> Composition[R]: ...
@overload
def parallel_then(
    calls: Iterable[TaskCall[A]], then: Task[Concatenate[list[A], ...], R]
) -> Composition[R]: ...
@overload
def parallel_then(calls: Iterable[TaskCall], then: TaskCall[R]) -> Composition[R]: ...
def parallel_then(calls: Iterable[TaskCall], then: AnyStep) -> Composition[Any]:
    """Runs calls at the same time, and then a task, whose first argument is the list of their results in order."""
    children = tuple(_leaf(call) for call in calls)
    if not children:
        raise InvalidOption("calls", "are none", "give at least one call")
    return Composition(_after(then, children, many=True))


def _leaf(call: TaskCall) -> CallNode:
    _check_call(call)
    return _node(call, (), None, many=False)


def _after(step: AnyStep, children: tuple[CallNode, ...], *, many: bool) -> CallNode:
    if isinstance(step, TaskCall):
        return _node(step, children, None, many=many)
    argument = step.arguments.first
    call: TaskCall = TaskCall(step, step.arguments.encode_without(argument), step.job_options)
    return _node(call, children, argument, many=many)


def _node(call: TaskCall, children: tuple[CallNode, ...], argument: str | None, *, many: bool) -> CallNode:
    if call.task.queue.kind != "bullmq":
        raise InvalidOption("calls", f"have one of {call.task.queue}", "flows are for BullMQ queues")
    job_id = call.options.job_id or uuid.uuid4().hex
    return CallNode(call.with_options(job_id=job_id), job_id, children, argument, many)


# --- without a last task ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ParallelJobs(Generic[R_co]):
    """Jobs that run at the same time."""

    jobs: Sequence[Job[JsonObject, R_co]]

    async def result(self, timeout: Duration | None = None) -> list[R_co]:
        """Waits for all; returns their results in order. Raises the error of the first that failed."""
        seconds = None if timeout is None else to_seconds("timeout", timeout)
        try:
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                waiting = [group.create_task(job.result()) for job in self.jobs]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [one.result() for one in waiting]


@dataclass(frozen=True, slots=True)
class Parallel(Generic[R_co]):
    """Calls that are enqueued together and do not depend on each other."""

    calls: tuple[TaskCall[R_co], ...]

    async def enqueue(self) -> ParallelJobs[R_co]:
        """Adds the jobs."""
        return ParallelJobs(await self.calls[0].task.app.enqueue_many(self.calls) if self.calls else [])


def parallel(*calls: TaskCall[R]) -> Parallel[R]:
    """Runs calls at the same time."""
    for call in calls:
        _check_call(call)
    return Parallel(calls)


def _check_call(call: object) -> None:
    if not isinstance(call, TaskCall):
        raise InvalidOption("calls", f"hold a {type(call).__name__}", "give task.bind(…)")
