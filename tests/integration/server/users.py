"""Other processes that use a folder's server, and what they leave behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

ENDED_WITHIN = 20.0  # Seconds; everything here takes milliseconds, unless the machine is busy.

_PROGRAM = """
import json, logging, sys
from toril.server import lease
logging.basicConfig(stream=sys.stdout, format="%(message)s")
held = lease(sys.argv[1], **json.loads(sys.argv[2]))
print(json.dumps({"url": held.url, "port": held.port}), flush=True)
for line in sys.stdin:
    exec(line)
"""


class User:
    """A process that leases a folder until it is told to leave, or is killed."""

    def __init__(self, where: str | Path, *, cwd: Path | None = None, **settings: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(where), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._told: dict[str, Any] | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def url(self) -> str:
        url: str = self._facts()["url"]
        return url

    @property
    def port(self) -> int | None:
        port: int | None = self._facts()["port"]
        return port

    def ready(self) -> Self:
        """Waits until it has its lease."""
        self._facts()
        return self

    def does(self, line: str) -> str:
        """Has it run one line of Python that prints something, and returns what it prints."""
        self.begins(line)
        return self.next_line()

    def begins(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def next_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leaves(self) -> None:
        """Ends it in an orderly way."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
        self._collect()

    def is_killed(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self._collect()

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leaves()

    def _facts(self) -> dict[str, Any]:
        if self._told is None:
            self._told = json.loads(self.next_line())
        return self._told

    def _collect(self) -> None:
        self.process.wait(timeout=ENDED_WITHIN)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def processes_of(folder: Path) -> list[psutil.Process]:
    """The server and the supervisor of a folder, as the operating system sees them."""
    return [process for process in psutil.process_iter() if _serves(process, folder)]


def servers_of(folder: Path) -> list[psutil.Process]:
    return [process for process in processes_of(folder) if "valkey" in process.name()]


def wait_until_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Waits for processes to end, whether or not their parent has taken notice; returns those that do not."""
    deadline = time.monotonic() + ENDED_WITHIN
    return [process for process in processes if not _ends_before(deadline, process.pid)]


def _ends_before(deadline: float, pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        os.close(descriptor)
    return bool(ended)


def _serves(process: psutil.Process, folder: Path) -> bool:
    try:
        command = process.cmdline()
        is_supervisor = any("toril.server._supervisor" in word for word in command) and str(folder) in command
        is_server = (
            any("valkey-server" in word for word in command) and Path(process.cwd()) == folder / "data"
        )
    except psutil.Error:
        return False
    return is_supervisor or is_server
