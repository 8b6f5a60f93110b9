"""Queues with codecs beside Node and bull-board: what they see, and what happens to what they add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.bull_board import Board
from tests.interop.reference import Bench, Reference
from tests.servers import Server
from toril import Job, JobFailed, Queue, Worker
from toril.codecs import AesGcm, Codecs, Zstd

SECRET = "the secret word"
DATA = {"secret": SECRET, "padding": "x" * 2000}


def encrypted(**options: Any) -> Codecs:
    return Codecs([Zstd(), AesGcm({"2026": bytes(range(32))})], **options)


@pytest.fixture
def bench(bullmq: Reference, valkey: Server, prefix: str) -> Iterator[Bench]:
    made = bullmq.bench("emails", url=valkey.url, prefix=prefix)
    yield made
    made.close()


async def echo(job: Job) -> Any:
    await job.update_progress({"at": SECRET})
    return job.data["secret"]


def steps_of(payload: Any) -> list[str]:
    assert list(payload) == ["_toril"]
    return [step["codec"] for step in payload["_toril"]["steps"]]


async def test_node_and_bull_board_see_an_object_that_names_the_codecs(
    valkey: Server, prefix: str, bench: Bench
) -> None:
    await bench.start_events("events")
    async with (
        Queue("emails", redis=valkey.url, prefix=prefix, codecs=encrypted()) as queue,
        Worker("emails", echo, redis=valkey.url, prefix=prefix, codecs=encrypted()),
    ):
        job = await queue.add("send", DATA)
        assert await job.wait_until_finished(20) == SECRET
    result = await bench.wait_until_finished(job.id, events="events", timeout=20)
    assert steps_of(result) == ["aes-gcm"], "it is too small to be compressed"
    await bench.stop("events")
    with Board(valkey.url, prefix, ["emails"]) as board:
        answer = board.get("queues", "emails", job.id)
    assert answer.status == 200
    shown = answer.body["job"]
    assert steps_of(shown["data"]) == ["zstd", "aes-gcm"]
    assert steps_of(shown["progress"]) == ["aes-gcm"]
    assert SECRET not in str(answer.body)


async def test_plain_text_of_a_node_producer_is_refused_and_kept_or_allowed(
    valkey: Server, prefix: str, bench: Bench
) -> None:
    job_id = await bench.ask("add", name="send", data=DATA, opts={"attempts": 3})
    async with Queue("emails", redis=valkey.url, prefix=prefix, codecs=encrypted(allow_plain=True)) as queue:
        job = await queue.get_job(job_id)
        assert job is not None
        async with Worker("emails", echo, redis=valkey.url, prefix=prefix, codecs=encrypted()):
            with pytest.raises(
                JobFailed, match="data is not encrypted, and its queue has encrypted payloads"
            ):
                await job.wait_until_finished(20)
        await job.refresh()
        assert (job.attempts_made, job.data) == (1, DATA)
        await job.retry()
        allowing = encrypted(allow_plain=True)
        async with Worker("emails", echo, redis=valkey.url, prefix=prefix, codecs=allowing):
            assert await job.wait_until_finished(20) == SECRET


async def test_a_payload_that_node_adds_again_is_still_readable(
    valkey: Server, prefix: str, bench: Bench
) -> None:
    """Node reads the data as an object and writes it back: that is how jobs are copied."""
    async with Queue("emails", redis=valkey.url, prefix=prefix, codecs=encrypted()) as queue:
        job = await queue.add("send", DATA)
        stored = job.as_json()["data"]
        copied = await bench.ask("add", name="send", data=stored, opts={})
        async with Worker("emails", echo, redis=valkey.url, prefix=prefix, codecs=encrypted()):
            copy = await queue.get_job(copied)
            assert copy is not None
            assert await copy.wait_until_finished(20) == SECRET
