"""The command, called in this process where that is enough, and as a process where it is about processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hostile_corpus import TEXTS
from tests.servers import Server
from toril.cli._app import run

HANDLERS = """
import asyncio, os, signal
from pathlib import Path

async def stubborn(job):
    Path(job.data["file"]).write_text(str(os.getpid()))
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def handle(job):
    if job.name == "fail":
        raise ValueError("refused: " + str(job.data))
    if job.name == "slow":
        Path(job.data["file"]).write_text(str(os.getpid()))
        await asyncio.sleep(job.data["seconds"])
    if job.name == "note":
        await job.log("a line")
        await job.update_progress(50)
    return {"pid": os.getpid()}

def plain(envelope):
    if envelope.task_type == "fail":
        raise ValueError("refused")
    return 1

by_name = {"work": handle, "*": handle}
only_work = {"work": handle}
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Toril = Callable[..., Result]


@pytest.fixture
def toril(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Toril]:
    """Runs one command line: `toril("queues", "--json")`."""
    monkeypatch.delenv("TORIL_REDIS_URL", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)  # A test's process may have inherited a width.

    def call(*words: str) -> Result:
        capsys.readouterr()
        code = run(words)
        printed = capsys.readouterr()
        return Result(code, printed.out, printed.err)

    logger = logging.getLogger("toril")
    before = list(logger.handlers)
    yield call
    assert logger.handlers == before, "a command that was called here must not change the log of this process"


@pytest.fixture
def here(valkey: Server, prefix: str) -> list[str]:
    """The options that point a command to this test's keys on a Valkey."""
    return ["--redis", valkey.url, "--prefix", prefix]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of handlers."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts a command as a process, which ends with the test."""
    with ExitStack() as stack:

        def launch(*words: str, python_path: Path | None = None, **more: Any) -> subprocess.Popen[str]:
            environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
            environment |= {"PYTHONPATH": str(python_path)} if python_path is not None else {}
            environment.pop("TORIL_REDIS_URL", None)
            process = subprocess.Popen(
                [sys.executable, "-m", "toril.cli", *words],
                cwd=folder,
                env=environment,
                text=True,
                **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
            )
            stack.callback(_end, process)
            return process

        yield launch


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.fixture
def places(tmp_path: Path, prefix: str) -> dict[str, str]:
    """What stands in the calls for paths and the prefix of this test."""
    child = {"name": TEXTS["a script"], "queue": "hostile", "data": TEXTS}
    (tmp_path / "flow.json").write_text(json.dumps({**child, "children": [child]}))
    names = {"flow": "flow.json", "file": TEXTS["a new line"], "lake": "lake", "page": "page.html"}
    names |= {"folder": TEXTS["a script"], "views": "views.duckdb", "script": "views.sql"}
    return {"prefix": prefix, **{name: str(tmp_path / file) for name, file in names.items()}}
