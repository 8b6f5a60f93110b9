"""Handlers that misbehave in processes of their own; importable, as such handlers must be."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from toril.sync import Job


def answer() -> None:
    """Runs in a grandchild."""


def misbehave(job: Job[Any]) -> Any:
    return globals()[job.name](job)


def fine(job: Job[Any]) -> str:
    return "fine"


def refuse_connection(job: Job[Any]) -> None:
    raise ConnectionRefusedError("nobody there")


def end_of_file(job: Job[Any]) -> None:
    raise EOFError("no more")


def unpicklable(job: Job[Any]) -> Any:
    return threading.Lock()


def without_json(job: Job[Any]) -> Any:
    return object


def huge(job: Job[Any]) -> str:
    return "x" * 20_000_000


def children(job: Job[Any]) -> int:
    child = multiprocessing.get_context("fork").Process(target=answer)
    child.start()
    child.join()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return child.exitcode or 0


def orphan(job: Job[Any]) -> str:
    """Leaves a process behind that holds whatever it inherited, and dies."""
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def pid(job: Job[Any]) -> int:
    return os.getpid()


def hang(job: Job[Any]) -> None:
    Path(job.data["pids"]).write_text(str(os.getpid()))
    threading.Event().wait()


def exit_hard(job: Job[Any]) -> None:
    os._exit(7)


def print_and_close(job: Job[Any]) -> str:
    os.closerange(0, 3)
    return "still there"
