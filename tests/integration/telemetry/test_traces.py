"""Spans of queues and workers: named as Node names them, in one tree, failed where the job failed."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from toril import (
    FlowNode,
    FlowProducer,
    Job,
    JobOptions,
    ListQueue,
    ListWorker,
    NewJob,
    ParentRef,
    Queue,
    TransientError,
    Worker,
)
from toril.errors import Postpone, WaitingChildrenError
from toril.telemetry.hooks import MetricsCollector, NoMetrics, Tracer
from toril.telemetry.opentelemetry import OpenTelemetryMetrics, OpenTelemetryTracer

QUEUE = "emails"


class Memory:
    """Spans in memory, and a tracer that makes them."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = OpenTelemetryTracer(self.provider)

    def named(self, name: str) -> ReadableSpan:
        (found,) = (span for span in self.exporter.get_finished_spans() if span.name == name)
        return found

    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.provider.shutdown()


async def worked(url: str, prefix: str, handler: Any, memory: Memory, **options: Any) -> Worker:
    worker = Worker(QUEUE, handler, redis=url, prefix=prefix, tracer=memory.tracer, **options)
    async with worker:
        await worker.run_until_idle()
    return worker


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def self_of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


async def test_a_job_that_is_put_back_for_its_name_has_no_span(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    async def handle(job: Job[Any]) -> None: ...

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        await queue.add("new", {})
    await worked(valkey_url, prefix, {"old": handle}, memory)
    assert memory.names() == []


async def test_a_job_is_processed_in_the_trace_of_whoever_added_it(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    inside: list[int] = []

    async def handle(job: Job[Any]) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    application = memory.provider.get_tracer("application")
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, tracer=memory.tracer) as queue:
        with application.start_as_current_span("request"):
            job = await queue.add("send", {"secret": "canary-payload"})
    worker = await worked(valkey_url, prefix, handle, memory)
    request, added, processed = (
        memory.named(name) for name in ("request", "add emails.send", "process emails")
    )
    assert parent_of(added) == self_of(request)
    assert parent_of(processed) == self_of(added)
    assert inside == [self_of(processed)[1]]
    assert (added.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert processed.status.status_code is StatusCode.UNSET
    expected = {
        "bullmq.queue.name": QUEUE,
        "bullmq.queue.operation": "process",
        "bullmq.job.id": job.id,
        "bullmq.job.name": "send",
        "bullmq.job.attempts.made": 0,
        "bullmq.worker.id": worker.id,
        "messaging.system": "bullmq",
        "messaging.destination.name": QUEUE,
        "messaging.operation.type": "process",
        "messaging.message.id": job.id,
    }
    assert expected.items() <= dict(processed.attributes or {}).items()
    assert (added.attributes or {})["bullmq.job.id"] == job.id
    assert "canary-payload" not in "".join(span.to_json() for span in memory.exporter.get_finished_spans())


async def test_the_context_travels_in_the_options_as_a_json_string(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, tracer=memory.tracer) as queue:
        job = await queue.add("send", {})
        stored = await queue.get_job(job.id)
        silent = await queue.add("send", {}, omit_context=True)
        without = await queue.get_job(silent.id)
    assert stored is not None and without is not None
    carrier = json.loads(stored.opts["tm"])
    trace_id, span_id = self_of(memory.exporter.get_finished_spans()[0])
    assert carrier["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert "tm" not in without.opts


async def test_jobs_added_together_share_one_span(valkey_url: str, prefix: str, memory: Memory) -> None:
    async def handle(job: Job[Any]) -> None: ...

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, tracer=memory.tracer) as queue:
        jobs = await queue.add_bulk(
            [
                ("a", {}),
                NewJob("b", {"n": 1}),
                ("c", {}, JobOptions(priority=2)),
                ("d", {}, {"omit_context": True}),
            ]
        )
    await worked(valkey_url, prefix, handle, memory)
    bulk = memory.named("addBulk emails")
    attributes = dict(bulk.attributes or {})
    assert attributes["bullmq.job.bulk.count"] == 4
    assert attributes["bullmq.job.bulk.names"] == ("a", "b", "c", "d")
    assert attributes["bullmq.job.ids"] == tuple(job.id for job in jobs)
    processed = {
        (span.attributes or {})["bullmq.job.name"]: span
        for span in memory.exporter.get_finished_spans()
        if span.name == "process emails"
    }
    assert {name: parent_of(span) == self_of(bulk) for name, span in processed.items()} == {
        "a": True,
        "b": True,
        "c": True,
        "d": False,
    }


async def test_a_failure_is_the_status_of_its_span_and_names_no_password(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    async def handle(job: Job[Any]) -> None:
        raise ValueError("no way to redis://user:canary-31@host")

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, tracer=memory.tracer) as queue:
        await queue.add("send", {})
    await worked(valkey_url, prefix, handle, memory)
    span = memory.named("process emails")
    assert span.status.status_code is StatusCode.ERROR
    (event,) = span.events
    assert event.name == "exception" and (event.attributes or {})["exception.type"] == "ValueError"
    assert "canary-31" not in span.to_json()


async def test_a_job_that_asks_for_another_time_has_not_failed(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    asked: list[str] = []

    async def handle(job: Job[Any]) -> None:
        if not asked:
            asked.append(job.id)
            raise Postpone(0.01)

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, tracer=memory.tracer) as queue:
        job = await queue.add("send", {})
        worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, tracer=memory.tracer)
        async with worker:
            await job.wait_until_finished(timeout=20)
    spans = [span for span in memory.exporter.get_finished_spans() if span.name == "process emails"]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET] * 2
    assert (spans[0].attributes or {})["bullmq.job.outcome"] == "Postpone"


async def test_a_plain_function_sees_its_span_in_its_thread(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    inside: list[int] = []

    def handle(job: Any) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {})
    await worked(valkey_url, prefix, handle, memory)
    span = memory.named("process emails")
    assert inside == [self_of(span)[1]] and parent_of(span) is None


@pytest.mark.parametrize("carrier", ["{broken", "[]", "{}", '{"traceparent": "nonsense"}'])
async def test_a_context_that_does_not_parse_is_as_good_as_none(
    valkey_url: str, prefix: str, memory: Memory, carrier: str
) -> None:
    async def handle(job: Job[Any]) -> None: ...

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {}, telemetry_metadata=carrier)
    worker = await worked(valkey_url, prefix, handle, memory)
    assert worker.processed == 1
    assert parent_of(memory.named("process emails")) is None


async def test_an_add_that_fails_is_a_failed_span(memory: Memory) -> None:
    queue: Queue[Any] = Queue(QUEUE, redis="unix:///nowhere.sock", tracer=memory.tracer)
    with pytest.raises(Exception, match="nowhere"):
        await queue.add("send", {})
    await queue.close()
    assert memory.named("add emails.send").status.status_code is StatusCode.ERROR


async def test_workers_of_list_queues_have_spans_too(valkey_url: str, prefix: str, memory: Memory) -> None:
    async def handle(envelope: Any) -> None: ...

    async with ListQueue("gen", redis=valkey_url, prefix=prefix) as queue:
        await queue.add("work", {})
    async with ListWorker("gen", handle, redis=valkey_url, prefix=prefix, tracer=memory.tracer) as worker:
        await worker.run_until_idle()
    assert memory.names() == ["process gen"]


# --- metrics ------------------------------------------------------------------------------------------------


async def test_metrics_of_a_run_are_instruments(valkey_url: str, prefix: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics(provider)
    assert isinstance(metrics, MetricsCollector)
    failures = iter([True, False, False, False])

    async def handle(job: Job[Any]) -> None:
        await asyncio.sleep(0)
        if next(failures):
            raise ValueError("no")

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, metrics=metrics) as queue:
        await queue.add_bulk([("send", {})] * 4)
        async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, metrics=metrics) as worker:
            await worker.run_until_idle()
        metrics.set_queue_length(QUEUE, "failed", 1)
        metrics.observe_lock_extend(QUEUE, 0.1)
        metrics.increment_stalled_jobs(QUEUE)
        metrics.increment_unknown_names(QUEUE, 2)
        metrics.increment_heartbeat_success(QUEUE)
        metrics.increment_heartbeat_failure(QUEUE)
        metrics.increment_redis_reconnect_attempts()
        metrics.increment_stalled_checker_skipped(QUEUE)
        metrics.increment_scheduler_failures(QUEUE)
    points = collected(reader)
    assert points["bullmq.jobs.added"] == [4]
    assert sorted(points["bullmq.jobs.processed"]) == [1, 3]
    assert points["bullmq.jobs.failed"] == [1]
    assert points["bullmq.active.workers"] == [0]
    assert points["bullmq.scheduler.failures"] == [1]
    assert points["bullmq.jobs.unknown_name"] == [2]
    assert {"bullmq.job.duration", "bullmq.job.wait", "bullmq.queue.length"} <= set(points)
    await asyncio.to_thread(provider.shutdown)


async def test_attempts_are_counted_under_the_names_of_node(valkey_url: str, prefix: str) -> None:
    """The names that BullMQ 6.7.0 lists for its meters, each counted when Node counts it."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics(provider)

    async def handle(job: Job[Any]) -> None:
        match job.name, job.attempts_started:
            case "retried" | "delayed", 1:
                raise TransientError("again")
            case "postponed", 1:
                job.postpone(0.01)
            case "waiting", 1:
                job.move_to_wait()
            case "parent", 1:
                parent = ParentRef(job.id, job.keys.qualified)
                await queue.add("child", {}, parent=parent)
                assert await job.move_to_waiting_children()
                raise WaitingChildrenError
            case "failed", _:
                raise ValueError("no")

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, metrics=metrics) as queue:
        for name in ("retried", "delayed", "postponed", "waiting", "parent", "failed"):
            await queue.add(name, {}, attempts=2, backoff=0.01 if name == "delayed" else 0)
        async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, metrics=metrics) as worker:
            await worker.run_until_idle()
        counts = await queue.get_job_counts()
        metrics.set_queue_length(QUEUE, "completed", counts.completed)
    points = collected(reader)
    found = {name: sum(points[name]) for name in node_meters() if name != "bullmq.job.duration"}
    assert found == {
        "bullmq.jobs.completed": 6,  # the child, too
        "bullmq.jobs.failed": 1,
        "bullmq.jobs.retried": 1,
        "bullmq.jobs.delayed": 2,
        "bullmq.jobs.waiting": 1,
        "bullmq.jobs.waiting_children": 1,
        "bullmq.queue.jobs": 6,
    }
    assert "bullmq.job.duration" in points
    await asyncio.to_thread(provider.shutdown)


def node_meters() -> list[str]:
    """The names in the package of BullMQ 6.7.0."""
    package = Path(__file__).parents[2] / "interop/node/node_modules/bullmq6/dist/cjs/enums"
    text = (package / "telemetry-attributes.js").read_text()
    return re.findall(r'MetricNames\["\w+"\] = "([\w.]+)"', text)


def collected(reader: InMemoryMetricReader) -> dict[str, Sequence[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: [
            getattr(point, "value", None) or getattr(point, "count", 0) for point in metric.data.data_points
        ]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_the_tracer_is_one(memory: Memory) -> None:
    assert isinstance(memory.tracer, Tracer)


async def test_each_job_of_a_flow_is_processed_in_the_trace_of_whoever_added_the_flow(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    async def handle(job: Job[Any]) -> None: ...

    application = memory.provider.get_tracer("application")
    children = [
        FlowNode("leaf", queue=QUEUE),
        FlowNode("silent", queue=QUEUE, options=JobOptions(omit_context=True)),
    ]
    async with FlowProducer(redis=valkey_url, prefix=prefix, tracer=memory.tracer) as flows:
        with application.start_as_current_span("request"):
            flow = await flows.add(FlowNode("root", queue=QUEUE, children=children))
    await worked(valkey_url, prefix, handle, memory)
    spans = memory.exporter.get_finished_spans()
    added = memory.named("addFlow emails")
    nodes = {(one.attributes or {})["bullmq.job.name"]: one for one in spans if one.name == "addNode emails"}
    done = {(one.attributes or {})["bullmq.job.name"]: one for one in spans if one.name == "process emails"}
    assert parent_of(added) == self_of(memory.named("request"))
    assert (added.attributes or {})["bullmq.flow.name"] == "root"
    assert (nodes["root"].attributes or {})["bullmq.job.id"] == flow.job.id
    assert {parent_of(one) for one in nodes.values()} == {self_of(added)}
    assert parent_of(done["root"]) == self_of(nodes["root"])
    assert parent_of(done["leaf"]) == self_of(nodes["leaf"])
    assert parent_of(done["silent"]) is None


async def test_several_flows_share_one_span(valkey_url: str, prefix: str, memory: Memory) -> None:
    async with FlowProducer(redis=valkey_url, prefix=prefix, tracer=memory.tracer) as flows:
        await flows.add_bulk([FlowNode(name, queue=QUEUE) for name in "ab"])
    added = memory.named("addBulkFlows")
    assert (added.attributes or {})["bullmq.job.bulk.names"] == ("a", "b")


async def test_the_jobs_of_a_scheduler_go_on_in_the_trace_of_whoever_made_it(
    valkey_url: str, prefix: str, memory: Memory
) -> None:
    async def handle(job: Job[Any]) -> None: ...

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix, tracer=memory.tracer) as queue:
        job = await queue.schedulers.upsert("tick", every=3600, name="beat")
        scheduler = await queue.schedulers.get("tick")
        await worked(valkey_url, prefix, handle, memory)
        (following,) = await queue.get_delayed()
    added = memory.named("add emails.beat")
    trace_id, span_id = self_of(added)
    carrier = f"00-{trace_id:032x}-{span_id:016x}-"
    assert (added.attributes or {})["bullmq.job.id"] == job.id
    assert parent_of(memory.named("process emails")) == self_of(added)
    assert json.loads(following.opts["tm"])["traceparent"].startswith(carrier)  # as Node hands it on
    assert scheduler is not None and scheduler.options.telemetry_metadata is None


async def test_jobs_of_flows_are_counted_for_their_queues(valkey_url: str, prefix: str) -> None:
    counted: list[str] = []

    class Counter(NoMetrics):
        def increment_jobs_added(self, queue: str, count: int = 1) -> None:
            counted.append(queue)

    async with FlowProducer(redis=valkey_url, prefix=prefix, metrics=Counter()) as flows:
        await flows.add(FlowNode("root", queue="a", children=[FlowNode("leaf", queue="b")]))
    assert sorted(counted) == ["a", "b"]
