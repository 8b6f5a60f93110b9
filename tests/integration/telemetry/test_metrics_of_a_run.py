"""The figures of a run in which everything happens: each agrees with the queue to the unit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import Server
from toril import Job, Queue, TransientError, Worker
from toril.telemetry.prometheus import PrometheusMetrics

QUEUE = "emails"
Values = dict[tuple[str, ...], float]


def values_of(metrics: PrometheusMetrics) -> Values:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> PrometheusMetrics:
    return PrometheusMetrics(CollectorRegistry())


async def handle(job: Job[Any]) -> None:
    match job.name:
        case "bad":
            raise ValueError("no")
        case "shaky" if job.attempts_made == 0:
            raise TransientError("busy")
        case "hopeless":
            raise TransientError("busy for ever")
        case "long" | "unwanted":
            await asyncio.Event().wait()


async def test_every_end_of_a_job_is_counted_once_under_its_reason(
    valkey: Server, prefix: str, metrics: PrometheusMetrics
) -> None:
    there: dict[str, Any] = {"redis": valkey.url, "prefix": prefix, "metrics": metrics}
    async with Queue(QUEUE, **there) as queue:
        for name, count in (("good", 5), ("bad", 2), ("shaky", 3), ("hopeless", 1)):
            await queue.add_bulk([(name, {})] * count)
        doomed = await queue.add("poisoned", {})
        with valkey.client() as client:
            # It has stalled once before, and its worker died again: active, without a lock.
            client.hset(queue.keys.job(doomed.id), "stc", 1)
            client.lrem(queue.keys.wait, 1, doomed.id)
            client.lpush(queue.keys.active, doomed.id)
        await queue.add("long", {}, attempts=1)
        worker = Worker(
            QUEUE, handle, concurrency=4, job_timeout=1.0, backoff_delay=0.01, lock_duration=5.0,
            heartbeat_interval=0.2, stalled_check_interval=0.2, **there,
        )  # fmt: skip
        worker.on("active", lambda job: worker.cancel(job.id) if job.name == "unwanted" else None)
        async with worker:
            await queue.add("unwanted", {}, attempts=1)
            await worker.run_until_idle()
        counts = await queue.get_job_counts()
    found = values_of(metrics)
    reasons = {
        reason: found["bullmq_jobs_failed_total", QUEUE, reason]
        for reason in ("permanent", "transient_exhausted", "stalled", "timeout", "cancelled")
        if ("bullmq_jobs_failed_total", QUEUE, reason) in found
    }
    assert sum(reasons.values()) == counts.failed == found["bullmq_jobs_processed_total", QUEUE, "failed"]
    assert reasons == {
        "permanent": 2,
        "transient_exhausted": 1,
        "stalled": 1,
        "timeout": 1,
        "cancelled": 1,
    }
    assert found["bullmq_jobs_processed_total", QUEUE, "completed"] == counts.completed == 8
    # Three attempts by default: the shaky ones are tried again once, the hopeless one twice.
    assert found["bullmq_jobs_processed_total", QUEUE, "retried"] == 3 + 2
    assert found["bullmq_jobs_added_total", QUEUE] == 14
    assert found["bullmq_stalled_jobs_total", QUEUE] == 1
    runs = sum(found["bullmq_jobs_processed_total", QUEUE, one] for one in ("completed", "failed", "retried"))
    assert found["bullmq_job_duration_seconds_count", QUEUE] in (runs, runs - 1), "the poisoned one never ran"
    assert found["bullmq_heartbeat_success_total", QUEUE] > 0
    assert found["bullmq_heartbeat_failure_total", QUEUE] == 0
    assert found["bullmq_lock_extend_duration_seconds_count", QUEUE] > 0
    assert not any(name == "bullmq_active_workers" for name, *_ in found), "the worker has stopped"
