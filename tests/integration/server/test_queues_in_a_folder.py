"""A queue whose address is a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.server.users import processes_of, wait_until_gone
from toril import Queue

_PRODUCER = """
import asyncio, sys
from toril import Queue

async def main():
    async with Queue("emails", redis="embedded:./x") as queue:
        await queue.add("send", {"by": sys.argv[1]})
        print((await queue.get_job_counts()).waiting, flush=True)
        sys.stdin.readline()
        print((await queue.get_job_counts()).waiting, flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


def start_producer(name: str, where: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PRODUCER, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=where,
    )


def says(producer: subprocess.Popen[str]) -> int:
    assert producer.stdout is not None
    return int(producer.stdout.readline())


async def test_two_processes_see_one_queue_which_survives_kill_9_of_both(folder: Path):
    producers = [start_producer(name, folder.parent) for name in ("one", "two")]
    for producer in producers:
        assert says(producer) in {1, 2}
    for producer in producers:
        assert producer.stdin is not None
        producer.stdin.write("\n")
        producer.stdin.flush()
        assert says(producer) == 2
    running = processes_of(folder)
    assert len(running) == 2  # the keeper and its server
    for producer in producers:
        producer.kill()
        producer.communicate()
    assert wait_until_gone(running) == []

    async with Queue("emails", redis=f"embedded:{folder}") as queue:
        assert (await queue.get_job_counts()).waiting == 2
    assert wait_until_gone(processes_of(folder)) == []
