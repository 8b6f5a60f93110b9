"""A warning points at the line of the user's code that led to it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from toril import Backoff, JobOptions, Queue, Worker, WorkerOptions
from toril.errors import OptionWarning

HOURS = 3 * 3600


async def handle(job: Any) -> None: ...


def add_to_a_queue() -> None:
    async def add() -> None:
        async with asyncio.timeout(10):
            queue = Queue("q", redis="redis://127.0.0.1:1")
            try:
                await queue.add("n", object(), backoff=HOURS)
            finally:
                await queue.close()

    with pytest.raises(ValueError, match="JSON"):
        asyncio.run(add())


@pytest.mark.parametrize(
    "step",
    [
        lambda: Backoff.exponential(HOURS),
        lambda: JobOptions(backoff=HOURS),
        lambda: WorkerOptions(lock_duration=10, heartbeat_interval=6),
        lambda: Worker("q", handle, lock_duration=10, heartbeat_interval=6),
        add_to_a_queue,
    ],
)
def test_a_warning_names_the_callers_file_and_line(step: Callable[[], Any]) -> None:
    with pytest.warns(OptionWarning) as caught:
        step()
    (warning,) = caught
    lines, first = inspect.getsourcelines(step)
    assert warning.filename == __file__
    assert first <= warning.lineno < first + len(lines)
