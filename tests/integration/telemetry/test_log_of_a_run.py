"""What a worker writes: every event that the document asks for, each with its fields, and no secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import Server
from tests.waiting import until
from toril import (
    Job,
    ListQueue,
    ListWorker,
    Queue,
    StreamQueue,
    StreamWorker,
    TransientError,
    Worker,
)

QUEUE = "emails"
PAYLOAD, RESULT, PASSWORD = "canary-payload-31", "canary-result-32", "canary-password-33"
# Event → its level and the fields beside worker_id and queue.
REQUIRED = {
    "Job picked up": (logging.INFO, {"job_id"}),
    "Job completed": (logging.INFO, {"job_id", "job_name", "duration"}),
    "Job failed": (
        logging.ERROR,
        {"job_id", "job_name", "error_type", "error", "category", "attempts_made", "hint"},
    ),
    "Job retried": (
        logging.WARNING,
        {"job_id", "job_name", "error_type", "error", "attempts_made", "delay"},
    ),
    "Job stalled": (logging.WARNING, {"job_id", "job_ids", "count", "lock_expired"}),
    "Heartbeat failed": (logging.WARNING, {"job_id", "job_ids", "count", "error"}),
    "Redis disconnected": (logging.ERROR, {"error"}),
    "Redis reconnected": (logging.INFO, {"attempt", "duration"}),
}


class Capture(logging.Handler):
    """Keeps records, and tells when an event was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, event: str) -> list[logging.LogRecord]:
        return [one for one in self.records if getattr(one, "event", "") == event]

    async def until(self, event: str) -> None:
        async with asyncio.timeout(30):
            while not self.of(event):
                await asyncio.sleep(0.01)


@pytest.fixture
def capture() -> Capture:
    return Capture()


@pytest.fixture
def logger(capture: Capture) -> logging.Logger:
    made = logging.getLogger(f"test.worker.{id(capture)}")
    made.setLevel(logging.DEBUG)
    made.addHandler(capture)
    return made


async def test_a_run_with_failures_logs_every_required_event_and_no_secret(
    start_valkey: Callable[..., Server], prefix: str, capture: Capture, logger: logging.Logger
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    # The default user needs no password and takes any; ours must not appear anywhere all the same.
    url = f"redis://default:{PASSWORD}@127.0.0.1:{server.port}"
    release = asyncio.Event()

    async def handle(job: Job[Any]) -> str:
        if job.name == "bad":
            raise ValueError(f"no way to redis://app:{PASSWORD}@host")
        if job.name == "shaky" and job.attempts_made == 0:
            raise TransientError("busy")
        if job.name == "held":
            await release.wait()
        return RESULT

    async with Queue(QUEUE, redis=url, prefix=prefix) as queue:
        for name in ("good", "bad", "shaky"):
            await queue.add(name, {"secret": PAYLOAD}, backoff=0.01)
        # A job of a worker that died: active, without a lock.
        orphan = await queue.add("orphan", {})
        with server.client() as client:
            client.lrem(queue.keys.wait, 1, orphan.id)
            client.lpush(queue.keys.active, orphan.id)
        worker = Worker(
            QUEUE,
            handle,
            redis=url,
            prefix=prefix,
            logger=logger,
            concurrency=4,
            lock_duration=0.6,
            stalled_check_interval=0.2,
            max_reconnect_delay=0.1,
        )
        async with worker:
            await capture.until("Job stalled")
            await capture.until("Job completed")
            await queue.add("held", {"secret": PAYLOAD})
            await until(
                lambda: any(getattr(one, "job_name", "") == "held" for one in capture.of("Job picked up")),
                "the held job is picked up",
                within=30,
            )
            await asyncio.to_thread(server.kill)
            await capture.until("Heartbeat failed")
            # The pump has a place free and asks for more, so it notices as well.
            await capture.until("Redis disconnected")
            server.start()
            await capture.until("Redis reconnected")
            release.set()
    for event, (level, fields) in REQUIRED.items():
        found = capture.of(event)
        assert found, f"{event} was never logged"
        for record in found:
            assert record.levelno == level, event
            assert fields | {"worker_id", "queue"} <= set(vars(record)), event
            assert (record.worker_id, record.queue) == (worker.id, QUEUE)  # type: ignore[attr-defined]
    everything = "\n".join(f"{one.getMessage()} {vars(one)}" for one in capture.records)
    for canary in (PAYLOAD, RESULT, PASSWORD):
        assert everything.count(canary) == 0


async def test_payloads_and_results_are_logged_only_when_asked_for(
    valkey_url: str, prefix: str, capture: Capture, logger: logging.Logger
) -> None:
    async def handle(job: Job[Any]) -> str:
        return RESULT

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {"secret": PAYLOAD})
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, logger=logger, log_payloads=True)
    async with worker:
        await worker.run_until_idle()
    (picked,), (completed,) = capture.of("Job picked up"), capture.of("Job completed")
    assert vars(picked)["payload"] == {"secret": PAYLOAD}
    assert vars(completed)["result"] == RESULT


async def test_an_adapter_adds_its_fields_and_takes_none_away(
    valkey_url: str, prefix: str, capture: Capture, logger: logging.Logger
) -> None:
    adapter = logging.LoggerAdapter(logging.LoggerAdapter(logger, {"app": "shop"}), {"zone": "eu"})
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        job = await queue.add("send", {"rate": "100%"})
    worker = Worker(QUEUE, lambda _: None, redis=valkey_url, prefix=prefix, logger=adapter, log_payloads=True)
    async with worker:
        await worker.run_until_idle()
    (picked,) = capture.of("Job picked up")
    expected = {"app": "shop", "zone": "eu", "worker_id": worker.id, "queue": QUEUE, "job_id": job.id}
    assert expected.items() <= vars(picked).items()
    assert f"worker_id={worker.id}" in picked.getMessage() and "100%" in picked.getMessage()


@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_queues_of_other_kinds_are_named_with_their_kind(
    valkey_url: str, prefix: str, capture: Capture, logger: logging.Logger, kind: str
) -> None:
    queue_class, worker_class = {"list": (ListQueue, ListWorker), "stream": (StreamQueue, StreamWorker)}[kind]
    async with queue_class("gen", redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {"secret": PAYLOAD})
        await queue.add("bad", {"secret": PAYLOAD}, max_attempts=1)

    async def handle(envelope: Any) -> str:
        if envelope.task_type == "bad":
            raise ValueError("no")
        return RESULT

    async with worker_class("gen", handle, redis=valkey_url, prefix=prefix, logger=logger) as worker:
        await worker.run_until_idle()
    assert {vars(one)["queue"] for one in capture.records} == {f"{kind}:gen"}
    assert {"Job picked up", "Job completed", "Job failed"} <= {vars(one)["event"] for one in capture.records}
    everything = "\n".join(f"{one.getMessage()} {vars(one)}" for one in capture.records)
    assert everything.count(PAYLOAD) == everything.count(RESULT) == 0
