"""What is stored with a failed job shows the handler's own frames, wherever it ran."""

from __future__ import annotations

import asyncio
import io
import logging
import time
import traceback
from typing import Any

import pytest

import toril
from tests.integration.worker import importable_handlers as handlers
from tests.integration.worker.conftest import QUEUE
from toril import Job, JobFailed, PermanentError, Queue, Worker
from toril.protocol.stack_trace import stack_of, was_cut
from toril.sync import Job as BlockingJob
from toril.telemetry.logging import JsonFormatter

LIBRARY = str(toril.__path__[0])


def fall() -> None:
    raise KeyError("the floor")


HUGE = "a line of many\n" * 2_000_000  # thirty megabytes


async def fall_loudly(job: Job[Any]) -> None:
    raise ValueError(HUGE)


async def fall_with_a_note(job: Job[Any]) -> None:
    error = ValueError("short")
    error.add_note(HUGE)
    raise error


async def fall_because(job: Job[Any]) -> None:
    try:
        await fall_loudly(job)
    except ValueError as error:
        raise KeyError("short") from error


async def longest_turn(until_done: asyncio.Task[Any]) -> float:
    """How long the event loop was held up at most, in seconds."""
    longest, last = 0.0, time.perf_counter()
    while not until_done.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.parametrize("handler", [fall_loudly, fall_with_a_note, fall_because])
async def test_a_huge_message_is_cut_before_it_holds_up_others(
    queue: Queue, valkey_url: str, prefix: str, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    written = io.StringIO()
    logger = logging.getLogger(f"test.{prefix}")
    logger.addHandler(logging.StreamHandler(written))
    logger.handlers[0].setFormatter(JsonFormatter())
    worker = Worker(QUEUE, handler, redis=valkey_url, prefix=prefix, logger=logger)
    failing = asyncio.create_task(trace_of(queue, worker))
    held_up = await longest_turn(failing)
    reason, trace = await failing
    assert f"in {handler.__name__}" in trace  # the frames are still in sight
    assert len(reason) < 20_000 and len(trace) < 20_000
    assert all(len(record.getMessage()) < 40_000 for record in caplog.records)
    assert 0 < len(written.getvalue()) < 100_000
    began = time.perf_counter()
    traceback.format_exception(ValueError(HUGE))
    assert held_up < time.perf_counter() - began  # what it takes to format such a message only once


async def in_loop(job: Job[Any]) -> None:
    fall()


def in_thread(job: BlockingJob[Any]) -> None:
    fall()


async def trace_of(queue: Queue, worker: Worker, name: str = "n") -> tuple[str, str]:
    """The reason and the trace of a job that fails."""
    async with worker:
        job = await queue.add(name, {}, attempts=1)
        with pytest.raises(JobFailed) as failed:
            await job.wait_until_finished(timeout=20)
    (trace,) = failed.value.stacktrace
    return failed.value.reason, trace


@pytest.mark.parametrize(
    ("handler", "executor"), [(in_loop, "async"), (in_thread, "thread"), (handlers.fall, "process")]
)
async def test_a_trace_begins_with_the_handler(
    queue: Queue, valkey_url: str, prefix: str, handler: Any, executor: Any
) -> None:
    worker = Worker(QUEUE, handler, redis=valkey_url, prefix=prefix, executor=executor)
    reason, trace = await trace_of(queue, worker)
    first, *_, last = trace.strip().splitlines()
    assert first == "Traceback (most recent call last):"
    assert f", in {handler.__name__}\n" in trace.split("File", 2)[1]
    assert last == "KeyError: 'the floor'"
    assert LIBRARY not in trace
    assert reason == "KeyError: 'the floor'"  # a key alone would tell nobody anything


async def test_causes_and_groups_stay(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(job: Job[Any]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(in_loop(job))

    async def outer(job: Job[Any]) -> None:
        try:
            await handle(job)
        except* KeyError as group:
            raise PermanentError("no way") from group

    _, trace = await trace_of(queue, Worker(QUEUE, outer, redis=valkey_url, prefix=prefix))
    assert trace.count("KeyError: 'the floor'") == 1
    assert "direct cause" in trace
    assert trace.strip().endswith("PermanentError: no way")
    assert LIBRARY not in trace


async def test_what_toril_itself_refuses_has_no_frames(queue: Queue, valkey_url: str, prefix: str) -> None:
    worker = Worker(QUEUE, {"known": in_loop}, redis=valkey_url, prefix=prefix, unknown_names="fail")
    reason, trace = await trace_of(queue, worker, "unknown")
    assert "no handler for jobs named 'unknown'" in reason
    assert trace.strip() == f"toril.errors.PermanentError: {reason}"


def test_an_unexpected_error_inside_toril_keeps_its_frames() -> None:
    code = compile("def broken():\n    return {}['key']\nbroken()\n", f"{LIBRARY}/worker/_broken.py", "exec")
    with pytest.raises(KeyError) as raised:
        exec(code, {})
    error = raised.value
    error.__traceback__ = raised.tb.tb_next  # from inside the library only
    assert f"{LIBRARY}/worker/_broken.py" in stack_of(error)


def test_of_very_many_notes_the_first_are_kept() -> None:
    error = ValueError("short")
    for n in range(100_000):
        error.add_note(f"note {n};")
    told = stack_of(error)
    assert "note 99;" in told and "note 100;" not in told
    assert was_cut(told)


def test_errors_that_form_a_ring_are_written_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert stack_of(first).count("ValueError: first") == 1
