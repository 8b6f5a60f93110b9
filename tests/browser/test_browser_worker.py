"""The browser worker on a stream queue: results, refusals and dead letters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.browser.site import Site
from tests.servers import Server
from toril import StreamQueue, StreamWorker
from toril.browser import BrowserOptions, BrowserTasks

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[StreamQueue]:
    async with StreamQueue("jobs.browser", redis=valkey_url, prefix=prefix, env="test") as queue:
        yield queue


async def work(server: Server, prefix: str, tasks: BrowserTasks, **options: Any) -> list[Any]:
    """Runs all jobs there are; the results."""
    results: list[Any] = []
    place: dict[str, Any] = {"redis": server.url, "prefix": prefix, "env": "test"}
    worker = StreamWorker("jobs.browser", tasks, **place, concurrency=4, backoff_delay=0, **options)
    worker.on("completed", lambda envelope, result: results.append(result))
    async with asyncio.timeout(60), worker:
        await worker.run_until_idle()
    return results


async def test_a_job_returns_the_selected_text(
    queue: StreamQueue, valkey: Server, prefix: str, tasks: BrowserTasks, site: Site
) -> None:
    await queue.add("navigate_extract", {"url": site.url(), "selector": ".content"})
    (result,) = await work(valkey, prefix, tasks)
    assert result["text"] == "Grüezi mitenand"
    assert await queue.pending() == 0


async def test_the_same_job_without_permission_is_a_dead_letter(
    queue: StreamQueue, valkey: Server, prefix: str, site: Site
) -> None:
    await queue.add("navigate_extract", {"url": site.url(), "selector": ".content"})
    async with BrowserTasks() as strict:
        assert await work(valkey, prefix, strict) == []
    (letter,) = [one async for one in queue.dead_letters()]
    assert (letter.dlq_reason, letter.last_error) == ("permanent_error", "address_refused")
    assert site.visits == []


async def test_a_page_that_never_loads_ends_as_a_dead_letter_with_playwright_timeout(
    queue: StreamQueue, valkey: Server, prefix: str, site: Site
) -> None:
    payload = {"url": site.url("/never"), "selector": "p"}
    sent = await queue.add("navigate_extract", payload, max_attempts=2)
    async with BrowserTasks(BrowserOptions(allow=("127.0.0.0/8",), timeout=1)) as tasks:
        await work(valkey, prefix, tasks)
    (letter,) = [one async for one in queue.dead_letters()]
    assert (letter.job_id, letter.envelope.attempts) == (sent.job_id, 2)
    assert (letter.dlq_reason, letter.last_error) == ("max_attempts_exceeded", "playwright_timeout")


async def test_an_invalid_payload_and_an_unknown_task_are_dead_letters(
    queue: StreamQueue, valkey: Server, prefix: str, tasks: BrowserTasks
) -> None:
    await queue.add("navigate_extract", {"url": "file:///etc/passwd", "selector": "p"})
    await queue.add("os.system", {"command": "true"})
    await work(valkey, prefix, tasks, unknown_names="fail")
    reasons = {one.task_type: one.dlq_reason async for one in queue.dead_letters()}
    assert reasons == {"navigate_extract": "validation_error", "os.system": "permanent_error"}


async def test_the_command_runs_browser_jobs(
    queue: StreamQueue, valkey: Server, prefix: str, site: Site
) -> None:
    sent = await queue.add("navigate_extract", {"url": site.url(), "selector": ".content"})
    place = (
        "--redis",
        valkey.url,
        "--prefix",
        prefix,
        "--env",
        "test",
        "--until-idle",
        "--keep-results",
        "60",
    )
    command = [
        sys.executable,
        "-m",
        "toril.cli",
        "worker",
        "--queue",
        "stream:jobs.browser",
        "--browser",
        *place,
    ]
    run = await asyncio.to_thread(
        subprocess.run, [*command, "--allow", "127.0.0.1"], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 0, run.stderr
    assert (await queue.result(sent.job_id))["text"] == "Grüezi mitenand"


async def test_the_command_keeps_to_its_time_and_warns_when_results_are_not_kept(
    queue: StreamQueue, valkey: Server, prefix: str, site: Site
) -> None:
    payload = {"url": site.url("/never"), "selector": ".content"}
    await queue.add("navigate_extract", payload, max_attempts=1)
    place = (
        "--redis",
        valkey.url,
        "--prefix",
        prefix,
        "--env",
        "test",
        "--until-idle",
        "--allow",
        "127.0.0.1",
    )
    command = [sys.executable, "-m", "toril.cli", "worker", "--queue", "stream:jobs.browser", "--browser"]
    run = await asyncio.to_thread(
        subprocess.run,
        [*command, "--job-timeout", "2", *place],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    assert "--keep-results" in run.stderr
    (letter,) = [one async for one in queue.dead_letters()]
    assert (letter.dlq_reason, letter.last_error) == ("max_attempts_exceeded", "playwright_timeout")
