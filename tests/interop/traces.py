"""One trace across both languages: who adds a job is the parent of who works it off, and both speak alike."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.interop.scenarios import QUEUE, Ground, Result, until_ended
from tests.interop.workload import follow_instructions
from toril import Queue, Worker
from toril.telemetry.opentelemetry import OpenTelemetryTracer


@dataclass(frozen=True, slots=True)
class Span:
    """A span of either side, in hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str | None
    kind: str
    attributes: frozenset[str]


# As BullMQ numbers the kinds of spans.
KINDS = {0: "INTERNAL", 3: "PRODUCER", 4: "CONSUMER"}


async def traces_continue(ground: Ground) -> Result:
    """Node adds and toril works; then toril adds and Node works."""
    wrong: list[str] = []
    async with ground.bench(telemetry=True) as bench:
        provider, exporter = _memory()
        tracer = OpenTelemetryTracer(provider)
        await bench.ask("add", name="walk", data={"result": 1}, opts={"jobId": "of-node"})
        worker = Worker(
            QUEUE, follow_instructions, redis=ground.server.url, prefix=ground.prefix, tracer=tracer
        )
        async with worker:
            await until_ended(ground, 1)
        added = _named(_of_node(await bench.ask("spans")), "add")
        worked = _named(_of_toril(exporter), "process")
        wrong += _apart("Node → toril", added, worked)
        exporter.clear()
        async with Queue(QUEUE, redis=ground.server.url, prefix=ground.prefix, tracer=tracer) as queue:
            await queue.add("walk", {"result": 2}, job_id="of-toril")
        handle = f"{ground.prefix}-traced"
        await bench.start_worker(handle)
        await until_ended(ground, 2)
        await bench.stop(handle)
        processed = _named(_of_node(await bench.ask("spans")), "process")
        ours = _named(_of_toril(exporter), "add")
        wrong += _apart("toril → Node", ours, processed)
        wrong += [*_unlike(ours, added), *_unlike(worked, processed)]
        await asyncio.to_thread(provider.shutdown)
    return Result(scenario="a trace goes on in the other language", jobs=2, differences=wrong)


def _memory() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def _of_toril(exporter: InMemorySpanExporter) -> list[Span]:
    return [
        Span(
            span.name,
            f"{span.context.trace_id:032x}",
            f"{span.context.span_id:016x}",
            f"{span.parent.span_id:016x}" if span.parent else None,
            span.kind.name,
            frozenset(span.attributes or {}),
        )
        for span in exporter.get_finished_spans()
        if span.context is not None
    ]


def _of_node(spans: list[dict[str, Any]]) -> list[Span]:
    return [
        Span(
            one["name"],
            one["trace_id"],
            one["span_id"],
            one["parent_id"],
            KINDS.get(one["kind"], str(one["kind"])),
            frozenset(one["attributes"]),
        )
        for one in spans
    ]


def _named(spans: list[Span], operation: str) -> Span:
    """The span of an operation, which its name begins with on both sides: `add orders.send`."""
    return next(span for span in spans if span.name.split(" ")[0] == operation)


def _apart(way: str, producer: Span, consumer: Span) -> list[str]:
    if (consumer.trace_id, consumer.parent_id) == (producer.trace_id, producer.span_id):
        return []
    return [f"{way}: {consumer} does not go on from {producer}"]


def _unlike(ours: Span, theirs: Span) -> list[str]:
    """The same operation has the same name and kind in both languages, and ours has every attribute of theirs."""
    wrong = [f"{ours.name} is {theirs.name} in Node"] if ours.name != theirs.name else []
    wrong += [f"{ours.name}: {ours.kind} is {theirs.kind} in Node"] if ours.kind != theirs.kind else []
    return wrong + [f"{ours.name} lacks {name}" for name in sorted(theirs.attributes - ours.attributes)]
