"""`toril dlq` on all kinds of queue: one job by its id, many by a choice, and nothing without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import Result
from tests.integration.cli.run_in_thread import called
from tests.servers import Server
from toril import ListQueue, ListWorker, PermanentError, Queue, StreamQueue, StreamWorker, Worker

KINDS: dict[str, tuple[Any, Any]] = {
    "emails": (Queue, Worker),
    "list:gen": (ListQueue, ListWorker),
    "stream:jobs.b": (StreamQueue, StreamWorker),
}
Shell = Callable[..., Awaitable[Result]]


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    """A queue as it is written in the shell."""
    return str(request.param)


@pytest.fixture
async def shell(valkey: Server, prefix: str, name: str) -> Shell:
    """The command, on a queue where three jobs have died: n = 0, 1, 2."""
    queue_class, worker_class = KINDS[name]
    plain = name.rpartition(":")[2]

    async def refuse(job: Any) -> None:
        raise PermanentError(f"refused {job.data['n']}")

    async with queue_class(plain, redis=valkey.url, prefix=prefix) as queue:
        for n in range(3):
            await queue.add("charge", {"n": n}, job_id=f"job-{n}")
    async with worker_class(plain, refuse, redis=valkey.url, prefix=prefix) as worker:
        await worker.run_until_idle()

    async def call(*words: str) -> Result:
        return await asyncio.to_thread(called, *words, "--redis", valkey.url, "--prefix", prefix)

    return call


async def ids_in(shell: Shell, name: str) -> list[str]:
    return [row["job_id"] for row in (await shell("dlq", "list", name, "--json")).data]


async def test_a_dead_job_is_shown_by_its_id(shell: Shell, name: str) -> None:
    assert await ids_in(shell, name) == ["job-2", "job-1", "job-0"]
    shown = (await shell("dlq", "show", name, "job-1", "--json")).data
    assert (shown["job_id"], shown["name"], "refused 1" in shown["error"]) == ("job-1", "charge", True)
    if shown["entry_id"] is not None:
        again = (await shell("dlq", "show", name, shown["entry_id"], "--json")).data
        assert again == shown
    plainly = await shell("dlq", "show", name, "job-1")
    assert '"n": 1' in plainly.out


async def test_one_job_is_replayed_by_its_id_and_not_found_the_second_time(shell: Shell, name: str) -> None:
    assert (await shell("dlq", "replay", name, "job-1", "--json")).data["replayed"] == 1
    assert await ids_in(shell, name) == ["job-2", "job-0"]
    again = await shell("dlq", "replay", name, "job-1", "--json")
    assert again.code == 1
    assert "dlq list" in again.err


async def test_some_jobs_are_purged_by_their_ids(shell: Shell, name: str) -> None:
    assert (await shell("dlq", "purge", name, "job-0", "job-2", "--yes", "--json")).data["purged"] == 2
    assert await ids_in(shell, name) == ["job-1"]


async def test_a_choice_moves_what_it_names_and_nothing_the_second_time(shell: Shell, name: str) -> None:
    for replayed in (1, 0):
        done = await shell("dlq", "replay", name, "--reason", "refused 2", "--json")
        assert (done.code, done.data["replayed"]) == (0, replayed)


@pytest.mark.parametrize("words", [[], ["--all", "--name", "charge"]], ids=["none", "two"])
@pytest.mark.parametrize("command", ["replay", "purge"])
async def test_nothing_happens_without_one_clear_choice(
    shell: Shell, name: str, command: str, words: list[str]
) -> None:
    refused = await shell("dlq", command, name, *words)
    assert refused.code == 2
    assert len(await ids_in(shell, name)) == 3


async def test_an_export_goes_to_a_file_or_to_standard_output_oldest_first(
    shell: Shell, name: str, tmp_path: Path
) -> None:
    file = tmp_path / "dead.jsonl"
    assert (await shell("dlq", "export", name, str(file), "--json")).data["exported"] == 3
    printed = await shell("dlq", "export", name, "-")
    assert printed.out == file.read_text()
    jobs = [json.loads(line) for line in printed.lines]
    assert [job.get("job_id") or job["id"] for job in jobs] == ["job-0", "job-1", "job-2"]


async def test_a_queue_without_dead_jobs_prints_one_line(shell: Shell, name: str) -> None:
    await shell("dlq", "purge", name, "--all", "--yes")
    assert "no dead jobs" in (await shell("dlq", "list", name)).out
    assert (await shell("dlq", "show", name, "job-1")).code == 1
