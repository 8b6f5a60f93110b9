"""Commands on list and stream queues, and what follows a queue while it lives."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Start, Toril
from tests.integration.cli.run_in_thread import called
from tests.integration.cli.test_demo import in_terminal
from tests.servers import Server
from toril import ListQueue, ListWorker, StreamQueue, StreamWorker
from toril.cli._handlers import load_handler
from toril.errors import InvalidOption

KINDS = {"list:gen": (ListQueue, ListWorker), "stream:jobs.b": (StreamQueue, StreamWorker)}


async def refuse(envelope: object) -> None:
    raise ValueError("refused")


@pytest.mark.parametrize("name", KINDS)
async def test_dead_letters_are_listed_filtered_replayed_and_purged(
    valkey: Server, prefix: str, name: str, tmp_path: Path
) -> None:
    here = ["--redis", valkey.url, "--prefix", prefix]
    queue_class, worker_class = KINDS[name]
    plain = name.partition(":")[2]
    async with queue_class(plain, redis=valkey.url, prefix=prefix) as queue:
        await queue.add_bulk([("send", {"n": 1}), ("send", {"n": 2}), ("print", {"n": 3})])
        async with worker_class(plain, refuse, redis=valkey.url, prefix=prefix) as worker:
            await worker.run_until_idle()

        async def toril(*words: str) -> object:
            result = await asyncio.to_thread(called, *words, "--json", *here)
            assert result.code == 0, result.err
            return result.data

        listed = await toril("dlq", "list", name, "--filter", "payload.n=2")
        assert [row["job"]["payload"] for row in listed] == [{"n": 2}]  # type: ignore[attr-defined]
        assert len(await toril("dlq", "list", name)) == 3  # type: ignore[arg-type]
        shown = await toril("inspect", name)
        assert shown["states"]["failed"] == 3 and len(shown["jobs"]) == 3  # type: ignore[index]
        one = shown["jobs"][0]["job_id"]  # type: ignore[index]
        assert len((await toril("inspect", name, one))["jobs"]) == 1  # type: ignore[index]
        long_ago, soon = ["--timestamp", "2020-01-01"], ["--timestamp", "2100-01-01T00:00:00"]
        assert (await toril("retry", name, *long_ago))["retried"] == 0  # type: ignore[index]
        assert (await toril("retry", name, *soon, "--limit", "1"))["retried"] == 1  # type: ignore[index]
        async with worker_class(plain, refuse, redis=valkey.url, prefix=prefix) as worker:
            await worker.run_until_idle()
        assert (await toril("retry", name, one))["retried"] == 1  # type: ignore[index]
        assert (await toril("dlq", "replay", name, "--name", "print"))["replayed"] == 1  # type: ignore[index]
        file = tmp_path / "dead.ndjson"
        assert (await toril("dlq", "export", name, str(file)))["exported"] == 1  # type: ignore[index]
        assert json.loads(file.read_text())["dlq_reason"] == "permanent_error"
        assert (await toril("dlq", "purge", name, "--all", "--yes"))["purged"] == 1  # type: ignore[index]
        assert (await queue.counts()).waiting == 2
        absent = await asyncio.to_thread(called, "inspect", name, "nobody", *here)
        assert absent.code == 1
        plainly = await asyncio.to_thread(called, "inspect", name, *here)
        assert "2 waiting" in plainly.out


@pytest.mark.parametrize("name", KINDS)
def test_a_delayed_job_is_seen_and_goes_with_its_queue(toril: Toril, here: list[str], name: str) -> None:
    toril("add", name, "send", "--delay", "60", "--job-id", "later-1", "--attempts", "2", *here)
    job = toril("inspect", name, "later-1", "--json", *here).data["jobs"][0]
    assert (job["state"], job["max_attempts"]) == ("delayed", 2)
    assert toril("remove", name, "--all", "--yes", *here).code == 0
    assert toril("inspect", name, "--json", *here).data["states"]["delayed"] == 0


@pytest.mark.parametrize("name", ["emails", *KINDS])
def test_delayed_jobs_are_promoted_removed_and_drained_whatever_the_kind(
    toril: Toril, here: list[str], name: str
) -> None:
    for job_id in ("a", "b", "c", "d"):
        toril("add", name, "send", "--delay", "60", "--job-id", job_id, *here)
    assert toril("remove", name, "a", "--yes", "--json", *here).data["removed"] == 1
    assert toril("promote", name, "b", "--json", *here).data["promoted"] == 1
    assert toril("promote", name, "--limit", "1", "--json", *here).data["promoted"] == 1
    toril("add", name, "send", "--count", "3", *here)
    kind = {"list": ListQueue, "stream": StreamQueue}.get(name.partition(":")[0])
    if kind is None:
        assert toril("drain", name, "--yes", "--json", *here).data["removed"] == 5
    else:
        # Jobs that became due lie where delayed ones do, until a worker comes for them.
        assert toril("drain", name, "--yes", "--json", *here).data["removed"] == 3
    left = toril("drain", name, "--delayed", "--yes", "--json", *here).data["removed"]
    assert left == (1 if kind is None else 3)
    assert sum(toril("inspect", name, "--json", *here).data[("states", "counts")[kind is None]].values()) == 0


@pytest.mark.parametrize("worker_class", [StreamWorker])
async def test_a_drained_stream_keeps_running_jobs_and_counts_exactly(
    server_url: str, prefix: str, worker_class: type[StreamWorker]
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(_: object) -> None:
        started.set()
        await release.wait()

    async with StreamQueue("jobs.b", redis=server_url, prefix=prefix) as queue:
        await queue.add("first", {})
        async with worker_class("jobs.b", handle, redis=server_url, prefix=prefix) as worker:
            await asyncio.wait_for(started.wait(), 20)
            await queue.add_bulk([("more", {})] * 1200)
            assert await queue.drain() == 1200
            await queue.add_bulk([("new", {})] * 3)
            counts = await queue.counts()
            assert (counts.waiting, counts.active) == (3, 1)
            release.set()
            await worker.run_until_idle()
        totals = await queue.totals()
        assert (totals["completed"], totals.get("trimmed", 0)) == (4, 0)


def test_events_are_followed_as_they_happen(start: Start, toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", "--job-id", "first", *here)
    process = start("events", "emails", "--follow", "--json", "--type", "added", *here)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["jobId"] == "first"
    toril("add", "emails", "send", "--job-id", "second", *here)
    assert json.loads(process.stdout.readline())["jobId"] == "second"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


def test_the_log_of_a_job_is_followed_until_it_ends(
    start: Start, toril: Toril, here: list[str], folder: Path
) -> None:
    file = folder / "started"
    data = json.dumps({"file": str(file), "seconds": 1})
    toril("add", "emails", "slow", "--job-id", "slow-1", "--data", data, *here)
    following = start("logs", "emails", "slow-1", "--follow", *here)
    worker = start("worker", "handlers:handle", "-q", "emails", "--until-idle", "--log-level", "error", *here)
    worker.communicate(timeout=30)
    following.communicate(timeout=30)
    assert following.returncode == 0


def test_jobs_come_from_standard_input(start: Start, here: list[str]) -> None:
    process = start("add", "emails", "send", "--lines", "-", "--json", *here, stdin=subprocess.PIPE)
    out, _ = process.communicate('{"n": 1}\n{"n": 2}\n', timeout=30)
    assert len(json.loads(out)["ids"]) == 2


def test_a_long_add_shows_a_bar_in_a_terminal(toril: Toril, here: list[str]) -> None:
    assert "adding" in in_terminal("add", "emails", "send", "--count", "1200", *here)
    assert toril("queues", "--json", *here).data[0]["states"]["waiting"] == 1200


def test_a_server_in_the_foreground_ends_when_it_is_stopped(start: Start, toril: Toril, folder: Path) -> None:
    process = start("server", "start", "--json")
    assert process.stdout is not None
    assert process.stdout.readline() == "{\n"
    assert toril("server", "stop", "--yes").out == "stopped\n"
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_handler_that_cannot_be_imported_is_reported_with_the_reason(folder: Path) -> None:
    (folder / "broken_handlers.py").write_text("raise RuntimeError('no database')")
    (folder / "needy_handlers.py").write_text("import no_such_library")
    with pytest.raises(InvalidOption, match="RuntimeError: no database"):
        load_handler("broken_handlers:f")
    with pytest.raises(InvalidOption, match="it needs no_such_library"):
        load_handler("needy_handlers:f")
