"""Prometheus: the names, labels and buckets that dashboards rely on."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from toril.telemetry.hooks import MetricsCollector
from toril.telemetry.prometheus import BUCKETS, PrometheusMetrics

# Name → labels, as the document has them, and what was added to them.
PROMISED = {
    "bullmq_jobs_processed_total": {"queue", "status"},
    "bullmq_job_duration_seconds_count": {"queue"},
    "bullmq_queue_length": {"queue", "state"},
    "bullmq_stalled_jobs_total": {"queue"},
    "bullmq_heartbeat_success_total": {"queue"},
    "bullmq_heartbeat_failure_total": {"queue"},
    "bullmq_active_workers": {"queue", "worker_id"},
    "bullmq_redis_connection_status": {"status"},
    "bullmq_redis_reconnect_attempts_total": set(),
    "bullmq_stalled_checker_skipped_total": {"queue"},
    "bullmq_lock_extend_duration_seconds_count": {"queue"},
    "bullmq_jobs_failed_total": {"queue", "reason"},
    "bullmq_job_wait_seconds_count": {"queue"},
    "bullmq_jobs_added_total": {"queue"},
    "bullmq_scheduler_failures_total": {"queue"},
    "bullmq_jobs_unknown_name_total": {"queue"},
    "bullmq_jobs_returned_total": {"queue", "state"},
}


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics(CollectorRegistry())


def use_all(metrics: PrometheusMetrics) -> None:
    metrics.increment_jobs_processed("emails", "completed", 3)
    metrics.increment_jobs_failed("emails", "permanent")
    metrics.increment_jobs_returned("emails", "delayed")
    metrics.increment_unknown_names("emails", 2)
    metrics.increment_jobs_added("emails", 5)
    metrics.observe_job_duration("emails", 0.2)
    metrics.observe_wait("emails", 7000)
    metrics.observe_lock_extend("emails", 0.001)
    metrics.set_queue_length("emails", "wait", 9)
    metrics.increment_stalled_jobs("emails", 2)
    metrics.increment_heartbeat_success("emails", 4)
    metrics.increment_heartbeat_failure("emails")
    metrics.set_active_workers("emails", "host-1-abc", True)
    metrics.set_redis_connection_status(True)
    metrics.increment_redis_reconnect_attempts()
    metrics.increment_stalled_checker_skipped("emails")
    metrics.increment_scheduler_failures("emails")


def samples(metrics: PrometheusMetrics) -> list[tuple[str, dict[str, str], float]]:
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    ]


def test_it_is_a_collector(metrics: PrometheusMetrics) -> None:
    assert isinstance(metrics, MetricsCollector)


def test_every_promised_name_has_its_labels(metrics: PrometheusMetrics) -> None:
    use_all(metrics)
    found = {name: set(labels) for name, labels, _ in samples(metrics)}
    assert {name: found[name] for name in PROMISED} == PROMISED


def test_only_active_workers_name_a_worker(metrics: PrometheusMetrics) -> None:
    use_all(metrics)
    named = {name for name, labels, _ in samples(metrics) if "host-1-abc" in labels.values()}
    assert named == {"bullmq_active_workers"}


def test_a_worker_that_stopped_takes_its_series_along(metrics: PrometheusMetrics) -> None:
    use_all(metrics)
    metrics.set_active_workers("emails", "host-1-abc", False)
    metrics.set_active_workers("emails", "never-started", False)
    assert "bullmq_active_workers{" not in metrics.render().decode()


def test_buckets_reach_from_five_milliseconds_to_hours(metrics: PrometheusMetrics) -> None:
    assert BUCKETS[0] == 0.005 and BUCKETS[-1] >= 2 * 3600
    assert list(BUCKETS) == sorted(BUCKETS)
    use_all(metrics)
    waited = {
        labels["le"]: value
        for name, labels, value in samples(metrics)
        if name == "bullmq_job_wait_seconds_bucket"
    }
    assert (waited["3600.0"], waited["7200.0"]) == (0, 1)


def test_exactly_one_status_of_the_connection_holds(metrics: PrometheusMetrics) -> None:
    for connected in (True, False):
        metrics.set_redis_connection_status(connected)
        values = {
            labels["status"]: value
            for name, labels, value in samples(metrics)
            if name == "bullmq_redis_connection_status"
        }
        assert values == {"connected": float(connected), "disconnected": float(not connected)}


def test_two_registries_do_not_meet() -> None:
    one, other = PrometheusMetrics(CollectorRegistry()), PrometheusMetrics(CollectorRegistry())
    one.increment_jobs_added("emails")
    assert b'bullmq_jobs_added_total{queue="emails"}' in one.render()
    assert b'bullmq_jobs_added_total{queue="emails"}' not in other.render()
