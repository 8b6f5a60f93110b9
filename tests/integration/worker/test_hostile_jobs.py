"""A worker on a queue that a hostile program has filled: its log cannot be forged, and no text holds it up."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile_corpus import LONG_TEXTS, TEXTS, plant, problems_in
from tests.servers import Server
from tests.waiting import until
from toril import Job, Queue, RateLimit, Worker
from toril.telemetry.logging import log_as_json, log_as_text

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING|ERROR) ")


@pytest.fixture
def texts() -> Iterator[io.StringIO]:
    yield from _log_of(log_as_text)


@pytest.fixture
def documents() -> Iterator[io.StringIO]:
    yield from _log_of(log_as_json)


def _log_of(start: Any) -> Iterator[io.StringIO]:
    logger = logging.getLogger("toril")
    level, propagate, stream = logger.level, logger.propagate, io.StringIO()
    handler = start(stream=stream)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


async def fail(job: Job[Any]) -> None:
    raise ValueError(f"{job.name} {job.id}")


async def run_hostile_jobs(valkey: Server, prefix: str) -> None:
    async with Queue("texts", redis=valkey.url, prefix=prefix) as queue:
        for number, text in enumerate(TEXTS.values()):
            job_id = f"job-{number}"
            with valkey.client() as client:
                record = {"name": text, "data": json.dumps(text), "opts": "{}", "timestamp": "1700000000000"}
                client.hset(f"{prefix}:texts:{job_id}", mapping=record)
                client.lpush(f"{prefix}:texts:wait", job_id)
        worker = Worker("texts", fail, redis=valkey.url, prefix=prefix, log_payloads=True)
        async with worker:
            await asyncio.wait_for(worker.run_until_idle(), 30)
        assert (await queue.get_job_counts()).failed == len(TEXTS)


async def test_names_and_errors_forge_no_line_of_a_text_log(
    valkey: Server, prefix: str, texts: io.StringIO
) -> None:
    await run_hostile_jobs(valkey, prefix)
    assert problems_in(texts.getvalue()) == []
    lines = texts.getvalue().splitlines()
    assert len(lines) > 2 * len(TEXTS) and [line for line in lines if not LINE.match(line)] == []


async def test_names_and_errors_forge_no_line_of_a_json_log(
    valkey: Server, prefix: str, documents: io.StringIO
) -> None:
    await run_hostile_jobs(valkey, prefix)
    assert problems_in(documents.getvalue()) == []
    records = [json.loads(line) for line in documents.getvalue().splitlines()]
    failed = [one for one in records if one.get("event") == "Job failed"]
    assert {one["job_name"] for one in failed} == set(TEXTS.values())


async def test_a_worker_ends_every_job_that_can_be_ended_among_planted_ones(
    valkey: Server, prefix: str
) -> None:
    with valkey.client() as client:
        planted = plant(client, prefix)
    seen: list[str] = []

    async def note(job: Job[Any]) -> None:
        seen.append(job.id)

    async with Queue(planted.queue, redis=valkey.url, prefix=prefix) as queue:
        last = await queue.add("plain", {})
        async with Worker(planted.queue, note, redis=valkey.url, prefix=prefix, concurrency=5):
            await last.wait_until_finished(timeout=20)
    assert last.id in seen and len(seen) > 5


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "with a rate limit"])
async def test_a_planted_key_among_due_jobs_loses_none_of_them(
    valkey: Server, prefix: str, limited: bool
) -> None:
    seen: list[str] = []

    async def note(job: Job[Any]) -> None:
        seen.append(job.id)

    async with Queue("due", redis=valkey.url, prefix=prefix) as queue:
        jobs = [await queue.add("n", {}, delay=0.05) for _ in range(5)]
        with valkey.client() as client:
            client.set(queue.keys.job("planted"), "no hash")
            client.zadd(queue.keys.delayed, {"planted": 1})  # due before all others
        if limited:  # by the official scripts
            await queue.set_global_rate_limit(RateLimit(1000, 1))
        async with Worker("due", note, redis=valkey.url, prefix=prefix, concurrency=2) as worker:
            await until(lambda: worker.processed == len(jobs), "all due jobs have run")
        assert sorted(seen) == sorted(job.id for job in jobs)
        assert (await queue.get_job_counts()).delayed == 0


@pytest.mark.parametrize(
    "name", ["beginnings of URLs with a user", "parameters", "new lines", "colons", "spaces"]
)
async def test_a_name_of_a_megabyte_does_not_hold_a_worker(
    valkey: Server, prefix: str, texts: io.StringIO, name: str
) -> None:
    with valkey.client() as client:
        record = {"name": LONG_TEXTS[name], "data": "{}", "opts": "{}", "timestamp": "1700000000000"}
        client.hset(f"{prefix}:big:1", mapping=record)
        client.lpush(f"{prefix}:big:wait", "1")
    worker = Worker("big", fail, redis=valkey.url, prefix=prefix)
    async with worker:
        began = time.thread_time()
        await asyncio.wait_for(worker.run_until_idle(), 30)
        held = time.thread_time() - began
    assert "Job failed" in texts.getvalue()
    # A second without coverage; an expression that searches again and again needs minutes.
    assert held < 10 and max(map(len, texts.getvalue().splitlines())) < 50_000
