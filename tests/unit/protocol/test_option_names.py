"""Whoever uses the name of another library, another spelling or a typing error is led to our name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import toril
from toril import (
    Backoff,
    ConnectionPolicy,
    FlowNode,
    FlowProducer,
    InvalidOption,
    JobOptions,
    ListQueue,
    ListWorker,
    Queue,
    QueueEvents,
    StreamQueue,
    StreamWorker,
    Worker,
    WorkerOptions,
    sync,
)
from toril.app.task import TaskSettings
from toril.errors import UnknownOption
from toril.protocol.option_names import _FOREIGN, knows_its_names, remedy_for
from toril.protocol.options import Deduplication, KeepJobs
from toril.protocol.worker_options import RateLimit

HERE = "redis://localhost:1"  # nobody is asked

CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "BullMQ's connection": (lambda **n: Queue("q", **n), {"connection": HERE}, "called redis here"),
    "of a worker": (lambda **n: Worker("q", print, **n), {"connection": HERE}, "called redis here"),
    "of a list worker": (lambda **n: ListWorker("q", print, **n), {"connection": HERE}, "called redis here"),
    "of a stream": (lambda **n: StreamQueue("q", **n), {"url": HERE}, "called redis here"),
    "the old name of a consumer group": (
        lambda **n: StreamQueue("q", **n),
        {"group": "g"},
        "called consumer_group here",
    ),
    "of a list": (lambda **n: ListQueue("q", **n), {"host": "h"}, "called redis here"),
    "of a flow": (FlowProducer, {"connection": HERE}, "called redis here"),
    "of events": (lambda **n: QueueEvents("q", **n), {"connection": HERE}, "called redis here"),
    "of events from": (lambda **n: QueueEvents("q", redis=HERE, **n), {"lastEventId": "0"}, "last_id"),
    "of the blocking queue": (lambda **n: sync.Queue("q", **n), {"connection": HERE}, "called redis here"),
    "of the blocking flow": (sync.FlowProducer, {"connection": HERE}, "called redis here"),
    "of blocking events": (lambda **n: sync.QueueEvents("q", **n), {"connection": HERE}, "called redis here"),
    "of a blocking list": (lambda **n: sync.ListQueue("q", **n), {"connection": HERE}, "called redis here"),
    "of a blocking worker": (
        lambda **n: sync.Worker("q", print, redis=HERE, **n),
        {"max_jobs": 1},
        "concurrency",
    ),
    "a misspelt prefix": (lambda **n: Queue("q", **n), {"prefx": "a"}, "did you mean prefix?"),
    "a misspelt concurrency": (lambda **n: Worker("q", print, **n), {"concurency": 1}, "mean concurrency?"),
    "in the options": (WorkerOptions, {"concurency": 1}, "did you mean concurrency?"),
    "arq's max_jobs": (lambda **n: Worker("q", print, **n), {"max_jobs": 1}, "called concurrency here"),
    "BullMQ's limiter": (lambda **n: Worker("q", print, **n), {"limiter": 1}, "called rate_limit here"),
    "Celery's time_limit": (
        lambda **n: Worker("q", print, **n),
        {"time_limit": 1},
        "called job_timeout here",
    ),
    "BullMQ's stalledInterval": (
        lambda **n: Worker("q", print, **n),
        {"stalledInterval": 1},
        "called stalled_check_interval here",
    ),
    "BullMQ's defaultJobOptions": (
        lambda **n: Queue("q", **n),
        {"defaultJobOptions": {}},
        "called defaults here",
    ),
    "removeOnComplete": (JobOptions, {"removeOnComplete": True}, "did you mean remove_on_complete?"),
    "jobId": (JobOptions, {"jobId": "a"}, "did you mean job_id?"),
    "timeout": (JobOptions, {"timeout": 5}, "Worker(…, job_timeout=seconds)"),
    "retries": (JobOptions, {"retries": 3}, "called attempts here: it counts the first attempt, too"),
    "Celery's max_retries": (JobOptions, {"max_retries": 3}, "called attempts here"),
    "arq's _defer_by": (JobOptions, {"_defer_by": 3}, "called delay here: seconds from now"),
    "Celery's countdown": (JobOptions, {"countdown": 3}, "called delay here: seconds from now"),
    "Celery's eta": (JobOptions, {"eta": 3}, "called delay here: delay= takes seconds from now"),
    "Celery's task_id": (JobOptions, {"task_id": "a"}, "called job_id here"),
    "RQ's at_front": (JobOptions, {"at_front": True}, "called lifo here"),
    "RQ's result_ttl": (JobOptions, {"result_ttl": 5}, "called remove_on_complete here"),
    "RQ's depends_on": (JobOptions, {"depends_on": 5}, "called parent here"),
    "a cron pattern": (JobOptions, {"cron": "* * * * *"}, "queue.schedulers.upsert(id, cron=…"),
    "BullMQ's opts": (JobOptions, {"opts": {}}, "add(name, data, attempts=5)"),
    "of a policy": (ConnectionPolicy, {"socket_timeout": 5}, "called command_timeout here"),
    "of a node": (lambda **n: FlowNode("a", **n), {"queueName": "q"}, "called queue here"),
    "of kept jobs": (KeepJobs, {"cuont": 5}, "did you mean count?"),
    "of a rate": (RateLimit, {"max": 5}, "called count here"),
    "of deduplication": (Deduplication, {"id": "a", "tll": 5}, "did you mean ttl?"),
    "of a backoff": (Backoff, {"typ": "fixed"}, "did you mean type?"),
    "what nobody knows": (lambda **n: Queue("q", **n), {"colour": "red"}, "options are name, redis, prefix"),
}


@pytest.mark.parametrize(("made", "named", "said"), CASES.values(), ids=CASES)
def test_an_unknown_name_leads_to_ours(made: Callable[..., Any], named: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownOption) as refused:
        made(**named)
    assert said in str(refused.value)
    assert {InvalidOption, TypeError} <= set(refused.type.__mro__)


async def test_options_of_an_add_lead_to_ours_before_anything_is_sent() -> None:
    queue, stream = Queue("q", redis=HERE), StreamQueue("q", redis=HERE)
    with pytest.raises(UnknownOption, match=r"timeout: is not a job option; .*job_timeout=seconds"):
        await queue.add("a", {}, timeout=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match=r"attempts: is not an option .*did you mean max_attempts"):
        await stream.add("a", {}, attempts=5)  # type: ignore[call-arg]
    with pytest.raises(UnknownOption, match=r"pattern: .*called cron here"):
        await queue.schedulers.upsert("s", pattern="* * * * *")  # type: ignore[call-arg]
    await queue.close()
    await stream.close()


async def test_wrong_limits_and_options_of_a_queue_are_refused_with_the_right_ones() -> None:
    queue, letters, blocking = Queue("q", redis=HERE), ListQueue("q", redis=HERE), sync.Queue("q", redis=HERE)
    for one in (queue, blocking):
        with pytest.raises(
            UnknownOption, match=r"count: is not an argument of retry_jobs; .*called limit here"
        ):
            await one.retry_jobs(count=2)  # type: ignore[call-arg,misc]
        with pytest.raises(UnknownOption, match=r"arguments: 1 too many without a name; give by name: limit"):
            await one.promote_jobs(2)  # type: ignore[call-arg,misc]
    with pytest.raises(UnknownOption, match=r"give name, data in this order, and by name: options"):
        blocking.add("a", {}, {"delay": 5})  # type: ignore[call-arg, arg-type]
    with pytest.raises(UnknownOption, match=r"count: is not an argument of purge; .*called limit here"):
        await letters.purge(count=2)  # type: ignore[call-arg]
    with pytest.raises(InvalidOption, match=r"where: is 2; .*limit="):
        await letters.replay(2)  # type: ignore[arg-type]
    await queue.close()
    await letters.close()
    blocking.close()


def test_an_address_without_its_name_is_refused_with_the_right_form() -> None:
    for made in (lambda: Queue("q", HERE), lambda: Worker("q", print, HERE)):  # type: ignore[call-overload, call-arg]
        with pytest.raises(UnknownOption, match=r"arguments: 1 too many without a name; .*by name: redis"):
            made()


def test_an_error_inside_a_call_stays_what_it_is() -> None:
    @knows_its_names("an argument")
    def broken(*, given: int) -> None:
        raise TypeError(f"{given} is too much")

    with pytest.raises(TypeError, match="5 is too much") as raised:
        broken(given=5)
    assert not isinstance(raised.value, UnknownOption)


def test_signatures_stay_what_they_are() -> None:
    assert list(inspect.signature(Queue).parameters)[:3] == ["name", "redis", "prefix"]
    assert "attempts" in inspect.signature(JobOptions).parameters
    assert inspect.signature(StreamQueue.add).parameters["max_attempts"].default == 5


@pytest.mark.parametrize(
    "method", [StreamQueue.add, StreamQueue.replay, Queue.retry_jobs, toril.producer.Schedulers.upsert]
)
def test_coroutine_functions_stay_what_they_are(method: Callable[..., Any]) -> None:
    """Frameworks run what is none in a thread, and never await it."""
    assert inspect.iscoroutinefunction(method)


def test_every_foreign_name_leads_to_a_name_that_exists_somewhere() -> None:
    makers = (
        JobOptions, WorkerOptions, ConnectionPolicy, KeepJobs, RateLimit, Queue, Worker, ListWorker, StreamWorker,
        ListQueue, StreamQueue, QueueEvents, FlowNode, StreamQueue.add, Queue.promote_jobs,
        toril.producer.Schedulers.upsert, TaskSettings,
    )  # fmt: skip
    ours = {name for made in makers for name in inspect.signature(made).parameters}
    for name, foreign in _FOREIGN.items():
        assert set(foreign.ours) <= ours, name
        assert foreign.ours or foreign.elsewhere, name
        assert remedy_for(name, foreign.ours or ["x"])
