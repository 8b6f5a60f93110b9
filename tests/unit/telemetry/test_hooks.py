"""Hooks: a protocol, and a collector that does nothing."""

from __future__ import annotations

import inspect

from toril.telemetry.hooks import NO_METRICS, MetricsCollector, NoMetrics

NAMES_OF_THE_DOCUMENT = {
    "increment_jobs_processed",
    "observe_job_duration",
    "set_queue_length",
    "increment_stalled_jobs",
    "increment_heartbeat_success",
    "increment_heartbeat_failure",
    "set_active_workers",
    "set_redis_connection_status",
    "increment_redis_reconnect_attempts",
    "increment_stalled_checker_skipped",
}


def methods(cls: type) -> dict[str, inspect.Signature]:
    found = inspect.getmembers(cls, inspect.isfunction)
    return {name: inspect.signature(function) for name, function in found if not name.startswith("_")}


def test_the_protocol_has_every_name_of_the_document() -> None:
    assert set(methods(MetricsCollector)) >= NAMES_OF_THE_DOCUMENT


def test_the_empty_collector_has_the_same_methods() -> None:
    assert methods(NoMetrics) == methods(MetricsCollector)
    assert isinstance(NO_METRICS, MetricsCollector)


def test_the_empty_collector_takes_everything_and_keeps_nothing() -> None:
    collector = NoMetrics()
    collector.increment_jobs_processed("q", "completed")
    collector.increment_jobs_failed("q", "permanent")
    collector.increment_jobs_returned("q", "delayed")
    collector.increment_unknown_names("q")
    collector.increment_jobs_added("q", 3)
    collector.observe_job_duration("q", 0.5)
    collector.observe_wait("q", 0.5)
    collector.observe_lock_extend("q", 0.5)
    collector.set_queue_length("q", "wait", 3)
    collector.increment_stalled_jobs("q")
    collector.increment_heartbeat_success("q")
    collector.increment_heartbeat_failure("q")
    collector.set_active_workers("q", "w", True)
    collector.set_redis_connection_status(False)
    collector.increment_redis_reconnect_attempts()
    collector.increment_stalled_checker_skipped("q")
    collector.increment_scheduler_failures("q")
    assert not hasattr(collector, "__dict__")
