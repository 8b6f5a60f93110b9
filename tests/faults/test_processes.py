"""Handlers in processes that die, hang, multiply and return what cannot be sent: each costs its own job alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults import process_handlers as handlers
from tests.faults.conftest import QUEUE
from tests.faults.worker_processes import ROOT
from tests.servers import Server
from tests.waiting import wait_until
from toril import InvalidOption, JobFailed, Queue, Worker
from toril.worker import WorkerState

pytestmark = pytest.mark.timeout(90)
Make = Callable[..., Worker]


@pytest.fixture
def make(valkey: Server, prefix: str) -> Make:
    def made(**options: Any) -> Worker:
        return Worker(
            QUEUE, handlers.misbehave, redis=valkey.url, prefix=prefix, executor="process", **options
        )

    return made


def of_worker() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [one for one in found if "spawn_main" in " ".join(one.cmdline())]


EXPECTED: dict[str, tuple[str, str]] = {
    "refuse_connection": ("failed", "nobody there"),
    "end_of_file": ("failed", "no more"),
    "unpicklable": ("failed", "lock, which has no JSON form"),
    "without_json": ("failed", ""),
    "huge": ("failed", "max_result_size allows 10485760"),
    "large": ("completed", ""),
    "children": ("completed", ""),
    "orphan": ("failed", "SIGKILL"),
    "exit_hard": ("failed", "exit code 7"),
    "print_and_close": ("completed", ""),
}


async def test_whatever_happens_in_a_process_its_job_ends_and_the_next_one_runs(
    under_attack: Queue, make: Make
) -> None:
    jobs = {name: await under_attack.add(name, {}, attempts=1) for name in EXPECTED}
    last = await under_attack.add("fine", {}, attempts=1)
    async with make(concurrency=2) as worker:
        await asyncio.wait_for(worker.run_until_idle(), 60)
    ends = {name: await under_attack.get_job(job.id) for name, job in jobs.items()}
    for name, (state, reason) in EXPECTED.items():
        found = ends[name]
        assert found is not None
        assert (name, await found.get_state()) == (name, state), found.failed_reason
        assert reason in (found.failed_reason or ""), name
    assert await last.get_state() == "completed"
    assert not of_worker()


@pytest.mark.parametrize(
    ("name", "reason", "attempts_made"),
    [
        ("interrupt", "KeyboardInterrupt: by hand", 1),
        ("leave", "SystemExit: 3", 1),
        ("close_generator", "GeneratorExit", 1),
        ("be_cancelled", "CancelledError", 2),
        ("raise_unprintable", "Unprintable", 1),
        ("raise_unprintable_that_exits", "UnprintableThatExits", 1),
        ("raise_unpicklable", "Unpicklable: cannot be sent", 1),
        ("raise_unreadable", "Unreadable: cannot be read", 1),
        ("raise_unavailable", "Unavailable: try again", 2),
        ("raise_huge", "xxx", 2),
    ],
)
async def test_an_error_of_any_kind_costs_its_attempt_and_neither_the_process_nor_the_worker(
    under_attack: Queue, make: Make, name: str, reason: str, attempts_made: int
) -> None:
    """What is transient stays so, though the error itself cannot be sent to the worker."""
    async with make() as worker:
        first = await (await under_attack.add("pid", {})).wait_until_finished(timeout=30)
        job = await under_attack.add(name, {}, attempts=2, backoff=0.01)
        with pytest.raises(JobFailed):
            await job.wait_until_finished(timeout=30)
        assert await (await under_attack.add("pid", {})).wait_until_finished(timeout=30) == first
        assert worker.state is WorkerState.RUNNING
    found = await under_attack.get_job(job.id)
    assert found is not None
    assert (reason in (found.failed_reason or ""), found.attempts_made) == (True, attempts_made)
    assert len(found.failed_reason or "") < 20_000 and all(len(one) < 20_000 for one in found.stacktrace)


async def test_a_process_that_is_killed_while_idle_costs_no_job(under_attack: Queue, make: Make) -> None:
    async with make() as worker:
        first = await (await under_attack.add("pid", {}, attempts=1)).wait_until_finished(timeout=30)
        os.kill(first, signal.SIGKILL)
        second = await (await under_attack.add("pid", {}, attempts=1)).wait_until_finished(timeout=30)
        assert second != first
        await worker.run_until_idle()
    assert (await under_attack.get_job_counts()).failed == 0


async def test_a_stop_while_processes_start_leaves_none_behind(under_attack: Queue, make: Make) -> None:
    moments: list[Callable[[], bool]] = [
        lambda: True,
        lambda: len(of_worker()) > 0,
        lambda: len(of_worker()) > 1,
    ]
    for moment in moments:
        await under_attack.add_bulk([("fine", {}) for _ in range(3)])
        worker = make(concurrency=3)
        await worker.start()
        await asyncio.to_thread(wait_until, moment, "processes start")
        await asyncio.wait_for(worker.stop(timeout=0), 20)
        await asyncio.to_thread(wait_until, lambda: not of_worker(), "no process is left")
    counts = await under_attack.get_job_counts()
    assert counts.active == counts.failed == 0


async def test_a_time_out_shorter_than_the_start_of_a_process_leaves_none_behind(
    under_attack: Queue, make: Make
) -> None:
    await under_attack.add_bulk([("fine", {}) for _ in range(4)])
    async with make(concurrency=2, job_timeout=0.01, max_attempts=1) as worker:
        await asyncio.wait_for(worker.run_until_idle(), 40)
        await asyncio.to_thread(wait_until, lambda: len(of_worker()) <= 2, "no more than two")
    assert not of_worker()


async def test_a_handler_ends_with_the_worker_that_was_killed(
    under_attack: Queue, valkey: Server, prefix: str, tmp_path: Path
) -> None:
    pids = tmp_path / "pid"
    job = await under_attack.add("hang", {"pids": str(pids)})
    text = (
        "import asyncio, sys\n"
        "from tests.faults.process_handlers import misbehave\n"
        "from toril import Worker\n"
        "if __name__ == '__main__':\n"
        "    worker = Worker(sys.argv[2], misbehave, redis=sys.argv[1], prefix=sys.argv[3], executor='process')\n"
        "    asyncio.run(worker.run())\n"
    )
    script = tmp_path / "worker.py"
    script.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(script), valkey.url, QUEUE, prefix],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    try:
        await asyncio.to_thread(wait_until, lambda: pids.exists() and pids.read_text(), "the handler runs")
    finally:
        process.kill()
        process.wait()
    child = int(pids.read_text())
    await asyncio.to_thread(
        wait_until, lambda: not psutil.pid_exists(child), "the handler's process has ended"
    )
    assert await under_attack.get_job_state(job.id) == "active"  # nobody is left to settle it


def test_a_handler_that_cannot_be_sent_is_refused_with_a_remedy(valkey: Server, prefix: str) -> None:
    worker = Worker(QUEUE, lambda job: None, redis=valkey.url, prefix=prefix, executor="process")
    with pytest.raises(InvalidOption, match="top level of a module"):
        asyncio.run(worker.start())
