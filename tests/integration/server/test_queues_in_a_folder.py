"""A queue whose address is a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.server.users import processes_of, wait_until_gone
from toril import InvalidOption, Queue

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


async def test_two_processes_see_one_queue_which_survives_kill_9_of_both(folder: Path) -> None:
    producers = [start_producer(name, folder.parent) for name in ("one", "two")]
    for producer in producers:
        assert says(producer) in {1, 2}
    for producer in producers:
        assert producer.stdin is not None
        producer.stdin.write("\n")
        producer.stdin.flush()
        assert says(producer) == 2
    running = processes_of(folder)
    assert len(running) == 2  # the supervisor and its server
    for producer in producers:
        producer.kill()
        producer.communicate()
    assert wait_until_gone(running) == []

    async with Queue("emails", redis=f"embedded:{folder}") as queue:
        assert (await queue.get_job_counts()).waiting == 2
    assert wait_until_gone(processes_of(folder)) == []


# Each object is made in one directory and used in another; the last one in a child that went elsewhere.
_WANDERERS = {
    "Queue": """
import asyncio
from toril import Queue
made = Queue("q", redis="embedded:./x")
os.chdir("elsewhere")
async def main():
    async with made:
        await made.add("a")
asyncio.run(main())
""",
    "Worker": """
import asyncio
from toril import Worker
made = Worker("q", print, redis="embedded:x")
os.chdir("elsewhere")
async def main():
    async with made:
        await made.run_until_idle()
asyncio.run(main())
""",
    "EmbeddedServer": """
from toril.server import EmbeddedServer
made = EmbeddedServer("x")
os.chdir("elsewhere")
with made:
    assert made.status().running
""",
    "sync.Queue in a child": """
from toril import sync
made = sync.Queue("q", redis="embedded:./x")
if os.fork() == 0:
    os.chdir("elsewhere")
    with made:
        made.add("a")
    os._exit(0)
assert os.wait()[1] == 0
made.close()
""",
    "the environment": """
from toril import sync
os.environ["TORIL_REDIS_URL"] = "embedded:x"
made = sync.Queue("q")
del os.environ["TORIL_REDIS_URL"]
os.chdir("elsewhere")
with made:
    made.add("a")
""",
}


@pytest.mark.parametrize("program", _WANDERERS.values(), ids=_WANDERERS)
def test_a_change_of_directory_moves_no_data(program: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-W", "error", "-c", f"import os{program}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "x" / "data").is_dir()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("url", ["embedded:~nobody-by-this-name/x", "embedded:a\0b"])
def test_a_folder_that_cannot_be_named_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match="redis: names no folder"):
        Queue("q", redis=url)
