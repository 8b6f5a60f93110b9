"""What a worker writes about failures: enough to find the mistake, on one line, and one line for many jobs."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.worker import importable_handlers as handlers
from tests.servers import Server
from tests.waiting import until
from toril import (
    Job,
    ListQueue,
    ListWorker,
    PermanentError,
    Queue,
    StreamQueue,
    StreamWorker,
    TransientError,
    Worker,
)
from toril.telemetry.logging import JsonFormatter, RedactingFormatter

QUEUE = "emails"
KINDS: dict[str, tuple[Any, Any]] = {
    "bullmq": (Queue, Worker),
    "list": (ListQueue, ListWorker),
    "stream": (StreamQueue, StreamWorker),
}


class Log:
    """A logger with handlers of its own, each of which writes to a text."""

    def __init__(self) -> None:
        self.logger = logging.getLogger(f"test.failures.{id(self)}")
        self.logger.setLevel(logging.WARNING)
        self.logger.propagate = False

    def to(self, formatter: logging.Formatter | None) -> io.StringIO:
        text = io.StringIO()
        handler = logging.StreamHandler(text)
        handler.setFormatter(formatter)
        self.logger.addHandler(handler)
        return text


@pytest.fixture
def log() -> Log:
    return Log()


def broken(what: str) -> None:
    raise ValueError(f"no {what}\nsecond line\x1b[2J\u2028end redis://app:canary@host")


async def handle(job: Any) -> None:
    if job.name == "bad":
        broken("colour")
    if job.name == "forbidden":
        raise PermanentError("not allowed")
    if job.name == "shaky":
        try:
            broken("network")
        except ValueError as error:
            raise TransientError("busy") from error


async def run(kind: str, url: str, prefix: str, log: Log, *names: str, **options: Any) -> None:
    queue_class, worker_class = KINDS[kind]
    more: dict[str, Any] = {"attempts": 2} if kind == "bullmq" else {"max_attempts": 2}
    async with queue_class(QUEUE, redis=url, prefix=prefix) as queue:
        for name in names:
            await queue.add(name, {}, **more)
    worker = worker_class(
        QUEUE, handle, redis=url, prefix=prefix, logger=log.logger, backoff_delay=0.001, **options
    )
    async with asyncio.timeout(30), worker:
        await worker.run_until_idle()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "formatter",
    [None, logging.Formatter("%(levelname)s %(message)s"), RedactingFormatter("%(message)s")],
    ids=["no formatter", "plain", "redacting"],
)
async def test_a_failure_is_one_line_of_text_that_shows_where_it_happened(
    valkey_url: str, prefix: str, log: Log, kind: str, formatter: logging.Formatter | None
) -> None:
    text = log.to(formatter)
    await run(kind, valkey_url, prefix, log, "bad", max_attempts=1)
    (line,) = text.getvalue().splitlines()
    for part in (
        "Job failed",
        "job_name=bad",
        "error_type=ValueError",
        "error=no colour\\nsecond line\\x1b[2J\\u2028end",
        "category=permanent",
        "unknown_errors='transient'",
        "Traceback (most recent call last):\\n",
        "in broken\\n",
    ):
        assert part in line, part
    assert "canary" not in line


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_in_json_has_the_stack_trace_in_a_field(
    valkey_url: str, prefix: str, log: Log, kind: str
) -> None:
    text = log.to(JsonFormatter())
    await run(kind, valkey_url, prefix, log, "bad", max_attempts=1)
    (line,) = text.getvalue().splitlines()
    found = json.loads(line)
    assert (found["event"], found["job_name"], found["error_type"]) == ("Job failed", "bad", "ValueError")
    assert found["error"].startswith("no colour\nsecond line")
    assert found["exception"].startswith("Traceback (most recent call last):\n")
    assert "in broken" in found["exception"] and "toril/worker/" not in found["exception"]
    assert "Traceback" not in found["message"] and "\n" not in found["message"]
    assert "canary" not in line


async def test_text_and_json_beside_each_other_get_what_each_can_show(
    valkey_url: str, prefix: str, log: Log
) -> None:
    plain, structured, quiet = log.to(None), log.to(JsonFormatter()), log.to(JsonFormatter())
    log.logger.handlers[-1].setLevel(logging.CRITICAL)
    await run("bullmq", valkey_url, prefix, log, "bad")
    (line,) = plain.getvalue().splitlines()
    assert line.startswith("Job failed") and "in broken\\n" in line
    found = json.loads(structured.getvalue())
    assert "in broken" in found["exception"] and "Traceback" not in found["message"]
    assert quiet.getvalue() == ""
    log.logger.addFilter(lambda record: "job_name=bad" not in record.getMessage())
    await run("bullmq", valkey_url, prefix, log, "bad")
    assert len(plain.getvalue().splitlines()) == len(structured.getvalue().splitlines()) == 1


async def test_a_retry_is_logged_as_one_and_a_known_error_needs_no_hint(
    valkey_url: str, prefix: str, log: Log
) -> None:
    text = log.to(None)
    await run("bullmq", valkey_url, prefix, log, "shaky", "forbidden")
    retried, reject_reason, failed = text.getvalue().splitlines()
    for line in (retried, failed):
        assert "job_name=shaky error_type=TransientError error=busy" in line
        assert "in handle\\n" in line and "direct cause" in line
    assert retried.startswith("Job retried") and failed.startswith("Job failed")
    assert "job_name=forbidden error_type=PermanentError error=not allowed" in reject_reason
    assert "unknown_errors" not in text.getvalue()


async def test_a_failure_in_a_process_shows_where_it_happened_there(
    valkey_url: str, prefix: str, log: Log
) -> None:
    text = log.to(None)
    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        await queue.add("fall", {}, attempts=1)
    worker = Worker(
        QUEUE, handlers.fall, redis=valkey_url, prefix=prefix, executor="process", logger=log.logger
    )
    async with asyncio.timeout(30), worker:
        await worker.run_until_idle()
    (line,) = text.getvalue().splitlines()
    assert "error_type=KeyError" in line and "in fall\\n" in line


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_an_error_that_cannot_be_printed_is_logged_by_its_type(
    valkey_url: str, prefix: str, log: Log
) -> None:
    text = log.to(None)

    async def raising(_: Job[Any]) -> None:
        raise Unprintable

    async with Queue(QUEUE, redis=valkey_url, prefix=prefix) as queue:
        await queue.add("x", {}, attempts=1)
    worker = Worker(QUEUE, raising, redis=valkey_url, prefix=prefix, logger=log.logger)
    worker.on("failed", lambda *_: [].pop())  # and neither is this callback a reason to end
    async with asyncio.timeout(30), worker:
        await worker.run_until_idle()
    failed, callback = text.getvalue().splitlines()
    assert "error_type=Unprintable error=Unprintable" in failed and "in raising\\n" in failed
    assert callback.startswith("Worker error error_type=IndexError") and "in <lambda>\\n" in callback


async def test_many_stalled_jobs_and_a_missed_heartbeat_are_one_line_each(
    start_valkey: Callable[..., Server], prefix: str, log: Log
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    text = log.to(JsonFormatter())
    begun, release = asyncio.Event(), asyncio.Event()
    running = 0

    async def hold(_: Job[Any]) -> None:
        nonlocal running
        running += 1
        if running == 30:
            begun.set()
        await release.wait()

    def found(event: str) -> list[dict[str, Any]]:
        return [one for line in text.getvalue().splitlines() if (one := json.loads(line))["event"] == event]

    async with asyncio.timeout(50), Queue(QUEUE, redis=server.url, prefix=prefix) as queue:
        jobs = await queue.add_bulk([("orphan", {})] * 30)
        with server.client() as client:  # as a worker leaves them that died
            client.rename(queue.keys.wait, queue.keys.active)
        worker = Worker(
            QUEUE,
            hold,
            redis=server.url,
            prefix=prefix,
            logger=log.logger,
            concurrency=30,
            lock_duration=20,
            heartbeat_interval=0.2,
            stalled_check_interval=0.2,
            max_reconnect_delay=0.1,
        )
        async with worker:
            await begun.wait()
            (stalled,) = found("Job stalled")
            assert (stalled["count"], stalled["lock_expired"]) == (30, True)
            assert len(stalled["job_ids"]) == 10 and set(stalled["job_ids"]) < {job.id for job in jobs}
            await asyncio.to_thread(server.kill)
            missed = await until(lambda: found("Heartbeat failed"), "a heartbeat failed")
            server.start()
            release.set()
    assert {one["count"] for one in missed} == {30}
    assert "job_ids=" + ",".join(missed[0]["job_ids"]) in missed[0]["message"]
