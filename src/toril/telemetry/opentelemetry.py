"""The hooks as OpenTelemetry spans and metrics, like BullMQ's own adapter for Node.

    from toril.telemetry.opentelemetry import OpenTelemetryMetrics, OpenTelemetryTracer

    tracer = OpenTelemetryTracer()                # the global providers, or tracer_provider=…
    Queue("emails", tracer=tracer)                # span "add emails.send"
    Worker("emails", handle, tracer=tracer)       # span "process emails", child of the one that added the job

Guarantee: a trace that begins in Node continues here and vice versa: the context is stored in the job's options
(`tm`, a JSON string of the propagator's carrier), and spans have Node's names and `bullmq.*` attributes, beside the
`messaging.*` ones of the semantic conventions. Payloads and results are never recorded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from toril.errors import HandlerSignal, redact
from toril.protocol.extras import needed
from toril.protocol.stack_trace import message_of, stack_of
from toril.telemetry.hooks import Adding, AddingSpan, FailureReason, JobStatus, ReturnState, Work

with needed("otel"):
    from opentelemetry import context as otel_context
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode

__all__ = ["OpenTelemetryMetrics", "OpenTelemetryTracer"]

SYSTEM: Final = "bullmq"
INSTRUMENTATION: Final = "toril"
# Lists in attributes are cut to this length.
MOST_NAMES: Final = 128


class _Adding:
    """The span of jobs that are being added."""

    def __init__(self, span: Span, *, many: bool) -> None:
        self._span = span
        self._many = many
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        self.carrier: str | None = json.dumps(carrier, separators=(",", ":")) if carrier else None

    def added(self, job_ids: Sequence[str]) -> None:
        if self._many:
            self._span.set_attribute("bullmq.job.ids", list(job_ids[:MOST_NAMES]))
        elif job_ids:
            self._span.set_attribute("bullmq.job.id", job_ids[0])
            self._span.set_attribute("messaging.message.id", job_ids[0])


class OpenTelemetryTracer:
    """A `Tracer` for queues and workers."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(INSTRUMENTATION, tracer_provider=tracer_provider)

    def adding(
        self, queue: str, names: Sequence[str], *, operation: Adding = "add"
    ) -> AbstractContextManager[AddingSpan]:
        return self._adding(queue, names, operation)

    @contextmanager
    def _adding(self, queue: str, names: Sequence[str], operation: Adding) -> Iterator[AddingSpan]:
        title = f"add {queue}.{names[0]}" if operation == "add" else f"{operation} {queue}".rstrip()
        attributes = _common(queue, operation, "send")
        many = operation in ("addBulk", "addBulkFlows")
        if many:
            attributes["bullmq.job.bulk.count"] = attributes["messaging.batch.message_count"] = len(names)
            attributes["bullmq.job.bulk.names"] = list(names[:MOST_NAMES])
        else:
            attributes["bullmq.flow.name" if operation == "addFlow" else "bullmq.job.name"] = names[0]
        span = self._tracer.start_span(title, kind=SpanKind.PRODUCER, attributes=attributes)
        with _current(span):
            yield _Adding(span, many=many)

    def processing(self, work: Work) -> AbstractContextManager[None]:
        return self._processing(work)

    @contextmanager
    def _processing(self, work: Work) -> Iterator[None]:
        attributes = {
            **_common(work.queue, "process", "process"),
            "bullmq.job.id": work.job_id,
            "bullmq.job.name": work.name,
            "bullmq.job.attempts.made": work.attempts_made,
            "bullmq.worker.id": work.worker_id,
            "bullmq.worker.name": work.worker_id,
            "messaging.message.id": work.job_id,
            "messaging.client.id": work.worker_id,
        }
        parent = _context_of(work.carrier)
        span = self._tracer.start_span(
            f"process {work.queue}", context=parent, kind=SpanKind.CONSUMER, attributes=attributes
        )
        span.set_attribute("bullmq.job.processed.timestamp", _now_ms())
        with _current(span):
            try:
                yield
            finally:
                span.set_attribute("bullmq.job.finished.timestamp", _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _common(queue: str, operation: str, kind: str) -> dict[str, Any]:
    return {
        "bullmq.queue.name": queue,
        "bullmq.queue.operation": operation,
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


def _context_of(carrier: str | None) -> Context | None:
    """Returns the context in which the job was added; None when it does not parse."""
    if carrier is None:
        return None
    try:
        fields = json.loads(carrier)
    except ValueError:
        return None
    return propagate.extract(fields) if isinstance(fields, dict) else None


@contextmanager
def _current(span: Span) -> Iterator[None]:
    """Makes the span the current one; records an error that is raised inside, and ends the span."""
    token = otel_context.attach(trace.set_span_in_context(span))
    try:
        yield
    except HandlerSignal as signal:
        span.set_attribute(
            "bullmq.job.outcome", type(signal).__name__
        )  # requested by the handler, no failure
        raise
    except BaseException as error:
        reason = redact(message_of(error)) or type(error).__name__
        # `record_exception` would write passwords of URLs in the message.
        stack = redact(stack_of(error))
        kind = type(error).__qualname__
        attributes = {"exception.type": kind, "exception.message": reason, "exception.stacktrace": stack}
        span.add_event("exception", attributes)
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, reason))
        raise
    finally:
        otel_context.detach(token)
        span.end()


def _node_attributes(queue: str, state: str) -> dict[str, str]:
    return {"bullmq.queue.name": queue, "bullmq.job.state": state}


class OpenTelemetryMetrics:
    """A `MetricsCollector` with OpenTelemetry's instruments, named like the Prometheus metrics with dots."""

    def __init__(self, meter_provider: metrics.MeterProvider | None = None) -> None:
        meter = metrics.get_meter(INSTRUMENTATION, meter_provider=meter_provider)
        self._processed = meter.create_counter("bullmq.jobs.processed", "{attempt}", "Attempts that ended.")
        # Node's counters: one for each way in which an attempt ends.
        self._completed = meter.create_counter("bullmq.jobs.completed", "{job}", "Jobs that completed.")
        self._returned: dict[ReturnState, metrics.Counter] = {
            "retried": meter.create_counter("bullmq.jobs.retried", "{attempt}", "Jobs retried at once."),
            "delayed": meter.create_counter("bullmq.jobs.delayed", "{attempt}", "Jobs retried or put off."),
            "waiting": meter.create_counter("bullmq.jobs.waiting", "{attempt}", "Jobs put back."),
            "waiting-children": meter.create_counter(
                "bullmq.jobs.waiting_children", "{attempt}", "Jobs that wait for children."
            ),
        }
        self._jobs = meter.create_gauge("bullmq.queue.jobs", "{job}", "Jobs in one state.")
        self._failed = meter.create_counter("bullmq.jobs.failed", "{job}", "Jobs that failed for good.")
        self._unknown = meter.create_counter(
            "bullmq.jobs.unknown_name", "{job}", "Jobs put back: no handler for their name."
        )
        self._added = meter.create_counter("bullmq.jobs.added", "{job}", "Jobs added.")
        self._duration = meter.create_histogram("bullmq.job.duration", "s", "How long handlers ran.")
        self._wait = meter.create_histogram(
            "bullmq.job.wait", "s", "How long jobs were ready before they ran."
        )
        self._extend = meter.create_histogram(
            "bullmq.lock.extend.duration", "s", "How long a renewal of locks took."
        )
        self._length = meter.create_gauge("bullmq.queue.length", "{job}", "Jobs in one state.")
        self._stalled = meter.create_counter("bullmq.stalled.jobs", "{job}", "Jobs of dead workers put back.")
        self._skipped = meter.create_counter("bullmq.stalled.checker.skipped", "{sweep}", "Sweeps skipped.")
        self._broken = meter.create_counter(
            "bullmq.scheduler.failures", "{job}", "Next jobs of schedulers that could not be made."
        )
        self._beats = meter.create_counter("bullmq.heartbeat.success", "{lock}", "Locks renewed.")
        self._missed = meter.create_counter("bullmq.heartbeat.failure", "{lock}", "Locks not renewed.")
        self._workers = meter.create_up_down_counter("bullmq.active.workers", "{worker}", "Workers that run.")
        self._connected = meter.create_gauge("bullmq.redis.connection.status", "1", "1: connected.")
        self._reconnects = meter.create_counter("bullmq.redis.reconnect.attempts", "{attempt}", "Reconnects.")

    def increment_jobs_processed(self, queue: str, status: JobStatus, count: int = 1) -> None:
        self._processed.add(count, {"queue": queue, "status": status})
        if status == "completed":
            self._completed.add(count, _node_attributes(queue, status))

    def increment_jobs_failed(self, queue: str, reason: FailureReason) -> None:
        self._failed.add(1, {"queue": queue, "reason": reason, **_node_attributes(queue, "failed")})

    def increment_jobs_returned(self, queue: str, state: ReturnState) -> None:
        self._returned[state].add(1, _node_attributes(queue, state))

    def increment_unknown_names(self, queue: str, count: int = 1) -> None:
        self._unknown.add(count, {"queue": queue})

    def increment_jobs_added(self, queue: str, count: int = 1) -> None:
        self._added.add(count, {"queue": queue})

    def observe_job_duration(self, queue: str, seconds: float) -> None:
        self._duration.record(seconds, {"queue": queue})

    def observe_wait(self, queue: str, seconds: float) -> None:
        self._wait.record(seconds, {"queue": queue})

    def observe_lock_extend(self, queue: str, seconds: float) -> None:
        self._extend.record(seconds, {"queue": queue})

    def set_queue_length(self, queue: str, state: str, length: int) -> None:
        self._length.set(length, {"queue": queue, "state": state})
        self._jobs.set(length, {"bullmq.queue.name": queue, "bullmq.queue.jobs.state": state})

    def increment_stalled_jobs(self, queue: str, count: int = 1) -> None:
        self._stalled.add(count, {"queue": queue})

    def increment_heartbeat_success(self, queue: str, count: int = 1) -> None:
        self._beats.add(count, {"queue": queue})

    def increment_heartbeat_failure(self, queue: str, count: int = 1) -> None:
        self._missed.add(count, {"queue": queue})

    def set_active_workers(self, queue: str, worker_id: str, active: bool) -> None:
        self._workers.add(1 if active else -1, {"queue": queue, "worker_id": worker_id})

    def set_redis_connection_status(self, connected: bool) -> None:
        self._connected.set(1 if connected else 0, {"status": "connected"})
        self._connected.set(0 if connected else 1, {"status": "disconnected"})

    def increment_redis_reconnect_attempts(self) -> None:
        self._reconnects.add(1)

    def increment_stalled_checker_skipped(self, queue: str) -> None:
        self._skipped.add(1, {"queue": queue})

    def increment_scheduler_failures(self, queue: str) -> None:
        self._broken.add(1, {"queue": queue})
