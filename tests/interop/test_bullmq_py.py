"""bullmq-py 3.4.4 on one queue with toril, as producer and as worker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders import BULLMQ_PY
from benchmarks.installation import install
from toril import Backoff, Job, Queue, TransientError, Worker

PROGRAM = Path(__file__).with_name("bullmq_py_program.py")
JOBS = 20


@pytest.fixture(scope="session")
def bullmq_py() -> str:
    """The Python that has bullmq-py, in a folder of its own; it is installed once."""
    install(BULLMQ_PY)
    assert BULLMQ_PY.install_folder is not None
    return str(BULLMQ_PY.install_folder / "bin" / "python")


async def run(python: str, *words: object) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        python, str(PROGRAM), *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=sys.stderr
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(40):
            out = await process.stdout.read()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode().split()


@pytest.mark.timeout(240)
async def test_toril_processes_what_bullmq_py_adds(bullmq_py: str, valkey_url: str, prefix: str) -> None:
    ids = await run(bullmq_py, "add", valkey_url, prefix, "shared", JOBS)
    ran: list[str] = []

    async def handle(job: Job[Any]) -> dict[str, Any]:
        if job.attempts_made < job.data["fail_times"]:
            raise TransientError("asked to fail")
        ran.append(job.id)
        return {"n": job.data["n"]}

    async with Queue("shared", redis=valkey_url, prefix=prefix) as queue:
        async with Worker("shared", handle, redis=valkey_url, prefix=prefix) as worker:
            await worker.run_until_idle()
        counts = await queue.get_job_counts()
        jobs = await queue.get_completed()
    assert sorted(ran) == sorted(ids)
    assert (counts.completed, counts.failed, counts.unfinished) == (JOBS, 0, 0)
    assert {job.returnvalue["n"] for job in jobs} == set(range(JOBS))


@pytest.mark.timeout(240)
async def test_bullmq_py_processes_what_toril_adds(bullmq_py: str, valkey_url: str, prefix: str) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"priority": 3},
        {"delay": 0.1},
        {"attempts": 3, "backoff": Backoff.fixed(0.01)},
        {"lifo": True},
    ]
    async with Queue("shared", redis=valkey_url, prefix=prefix) as queue:
        added = [
            await queue.add("job", {"n": n, "fail_times": int(n % 5 == 3)}, **kinds[n % 5])
            for n in range(JOBS)
        ]
        ran = await run(bullmq_py, "work", valkey_url, prefix, "shared", JOBS)
        assert sorted(ran) == sorted(job.id for job in added)
        assert [await job.wait_until_finished(timeout=10) for job in added] == [{"n": n} for n in range(JOBS)]
        counts = await queue.get_job_counts()
        assert (counts.completed, counts.failed, counts.unfinished) == (JOBS, 0, 0)


@pytest.mark.timeout(240)
async def test_both_process_one_queue(bullmq_py: str, valkey_url: str, prefix: str) -> None:
    ended_there = asyncio.Event()

    async def handle(job: Job[Any]) -> dict[str, Any]:
        await ended_there.wait()  # so that the other worker finds jobs, however long it takes to start
        return {"n": job.data["n"]}

    async with Queue("shared", redis=valkey_url, prefix=prefix) as queue:
        added = await queue.add_bulk([("job", {"n": n}) for n in range(200)])
        async with Worker("shared", handle, redis=valkey_url, prefix=prefix, concurrency=5) as worker:
            ran_there = await run(bullmq_py, "work", valkey_url, prefix, "shared", JOBS)
            ended_there.set()
            await worker.run_until_idle()
        assert [await job.wait_until_finished(timeout=10) for job in added] == [{"n": n} for n in range(200)]
        assert JOBS <= len(ran_there) < 200
        found = [await queue.get_job(job.id) for job in added]
        assert {job.attempts_made for job in found if job is not None} == {1}
