"""Hostile names, ids and sizes: refused before any I/O, or stored and read back as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.faults.conftest import QUEUE
from tests.servers import Server
from toril import InvalidOption, Job, Queue, Worker
from toril.commands.command import plain
from toril.errors import PayloadTooLarge
from toril.transport import AsyncTransport

NOWHERE = "redis://127.0.0.1:1"  # nobody listens: what is refused here was refused before any I/O
LIMIT = 10 * 1024 * 1024

HOSTILE = [
    "", " ", ":", "a:b", "0:1", "12345", "-1", "1e5", "meta", "wait", "events", "marker", "id", "toril", "active",
    "completed", "failed", "stalled", "stalled-check", "limiter", "pc", "{x}", "}{", "a{b", "nul\0nul", "\0", "\n",
    "\r\n*1\r\n$8\r\nFLUSHALL\r\n", "ünï", "日本語", "👩‍👩‍👧‍👦", "\u202eevil", "\ud800", "x" * 255, "x" * 257,
    "x" * 100_000,
    "../../etc", "*", "?", "[a]", "%s", "'; --", "<script>", "__proto__", "null", "undefined", "NaN",
]  # fmt: skip
NAMES = ["plain", *HOSTILE]
# What is accepted; everything else is refused. A change here is a change of the contract with other clients.
ACCEPTED_IDS = {
    " ", "1e5", "{x}", "}{", "a{b", "ünï", "日本語", "👩‍👩‍👧‍👦", "\u202eevil", "x" * 255, "../../etc", "*", "?", "[a]",
    "%s", "'; --", "<script>", "__proto__", "null", "undefined", "NaN",
}  # fmt: skip
ACCEPTED_QUEUES = ACCEPTED_IDS | {
    "12345", "-1", "meta", "wait", "events", "marker", "id", "toril", "active", "completed", "failed", "stalled",
    "stalled-check", "limiter", "pc",
}  # fmt: skip
ACCEPTED_NAMES = ACCEPTED_QUEUES | {"plain", ":", "a:b", "0:1"}


async def attempted(step: Awaitable[Job[Any]]) -> tuple[Job[Any] | None, str]:
    """What an `add` gave, or how it was refused."""
    try:
        return await step, ""
    except InvalidOption as error:
        return None, str(error)


@pytest.mark.parametrize("job_id", HOSTILE, ids=lambda text: ascii(text)[:30])
async def test_an_id_is_refused_before_any_io_or_runs_under_exactly_this_id(
    valkey: Server, prefix: str, job_id: str
) -> None:
    seen: list[tuple[str, str]] = []

    async def handle(job: Job[Any]) -> str:
        seen.append((job.id, job.name))
        return job.id

    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        job, refusal = await attempted(queue.add("n", {}, job_id=job_id))
        assert (job is not None) == (job_id in ACCEPTED_IDS), refusal
        if job is None:
            assert "job_id" in refusal and len(refusal) < 1000
            assert await queue.count() == 0
            return
        async with Worker(QUEUE, handle, redis=valkey.url, prefix=prefix):
            assert await job.wait_until_finished(timeout=10) == job_id
        assert seen == [(job_id, "n")]
        found = await queue.get_job(job_id)
        assert found is not None and found.id == job_id and found.returnvalue == job_id
        assert [one.id for one in await queue.get_completed()] == [job_id]
        await found.remove()
        assert await queue.get_job(job_id) is None


@pytest.mark.parametrize("name", NAMES, ids=lambda text: ascii(text)[:30])
async def test_a_job_name_is_refused_or_reaches_the_handler_as_it_was(
    valkey: Server, prefix: str, name: str
) -> None:
    async def handle(job: Job[Any]) -> str:
        return job.name

    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        job, refusal = await attempted(queue.add(name, {}))
        assert (job is not None) == (name in ACCEPTED_NAMES), refusal
        if job is None:
            assert "name" in refusal
            return
        async with Worker(QUEUE, handle, redis=valkey.url, prefix=prefix):
            assert await job.wait_until_finished(timeout=10) == name


@pytest.mark.parametrize("name", HOSTILE, ids=lambda text: ascii(text)[:30])
def test_a_queue_name_is_refused_by_queue_and_worker_alike(name: str) -> None:
    ack_errors = []
    for make in (lambda: Queue(name, redis=NOWHERE), lambda: Worker(name, lambda job: None, redis=NOWHERE)):
        try:
            make()
        except InvalidOption as error:
            ack_errors.append(error.field)
        else:
            ack_errors.append("")
    assert ack_errors == (["", ""] if name in ACCEPTED_QUEUES else ["queue", "queue"])


@pytest.mark.parametrize(
    "data",
    [object(), {"x": float("nan")}, {"x": float("inf")}, lambda: 1, {"x": {(1, 2): 3}}, {"\ud800": 1}],
    ids=["an object", "NaN", "infinity", "a function", "a tuple as key", "half a character"],
)
async def test_data_without_a_json_form_is_refused_before_any_io(data: Any) -> None:
    queue = Queue(QUEUE, redis=NOWHERE)
    try:
        with pytest.raises(InvalidOption):
            await asyncio.wait_for(queue.add("n", data), 10)
    finally:
        await queue.close()


async def test_ten_megabytes_are_taken_and_one_byte_more_is_refused_before_any_io(
    valkey: Server, prefix: str
) -> None:
    sizes: list[int] = []

    async def handle(job: Job[Any]) -> None:
        sizes.append(len(job.data))

    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        over = Queue(QUEUE, redis=NOWHERE)
        with pytest.raises(PayloadTooLarge, match=r"10|limit|bytes"):
            await over.add("n", "x" * (LIMIT + 1))
        await over.close()
        space = LIMIT - 200  # for the quotes and the options
        job = await queue.add("n", "x" * space)
        async with Worker(QUEUE, handle, redis=valkey.url, prefix=prefix):
            await job.wait_until_finished(timeout=30)
    assert sizes == [space]


async def test_a_huge_result_fails_its_job_and_never_wedges_the_worker(valkey: Server, prefix: str) -> None:
    async def handle(job: Job[Any]) -> Any:
        return "x" * job.data["size"]

    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        big = await queue.add("n", {"size": 30_000_000}, attempts=1)
        small = await queue.add("n", {"size": 10}, attempts=1)
        async with Worker(QUEUE, handle, redis=valkey.url, prefix=prefix) as worker:
            await asyncio.wait_for(worker.run_until_idle(), 30)
        assert await small.get_state() == "completed"
        assert await big.get_state() == "failed"  # it has more than `max_result_size`


async def test_words_that_cannot_be_sent_shift_nobodys_replies(behind: AsyncTransport, prefix: str) -> None:
    """Many callers share a connection: one whose call fails before it is sent must not get in the way of the others."""

    async def bad(i: int) -> None:
        strange: Any = [None, "\ud800", object()][i % 3]
        with pytest.raises((TypeError, UnicodeEncodeError)):
            await behind.run(plain(str, "GET", strange))

    async def good(i: int) -> None:
        assert await behind.run(plain(bytes.decode, "ECHO", f"{prefix} {i}")) == f"{prefix} {i}"

    await behind.connect()
    await asyncio.wait_for(asyncio.gather(*(step(i) for i in range(10) for step in (bad, good))), 10)


@pytest.mark.parametrize("wrong", [None, 5, b"bytes", "\ud800", ["a"]], ids=repr)
async def test_an_id_that_is_no_text_is_refused_wherever_it_is_asked_for(wrong: Any) -> None:
    queue = Queue(QUEUE, redis=NOWHERE)
    try:
        for step in (queue.get_job, queue.get_job_state, queue.get_job_logs, queue.remove, queue.cancel):
            with pytest.raises(InvalidOption, match="job_id"):
                await asyncio.wait_for(step(wrong), 10)
    finally:
        await queue.close()


async def test_a_log_line_with_a_stray_surrogate_is_kept_as_far_as_it_can_be(
    valkey: Server, prefix: str
) -> None:
    async def handle(job: Job[Any]) -> None:
        await job.log("before \ud800 after")

    async with Queue(QUEUE, redis=valkey.url, prefix=prefix) as queue:
        job = await queue.add("n", {})
        async with Worker(QUEUE, handle, redis=valkey.url, prefix=prefix):
            await job.wait_until_finished(timeout=10)
        assert (await queue.get_job_logs(job.id)).lines == ["before ? after"]
