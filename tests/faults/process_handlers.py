"""Handlers that misbehave in processes of their own; importable, as such handlers must be."""

from __future__ import annotations

import asyncio
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


def large(job: Job[Any]) -> str:
    return "x" * 9_000_000


def interrupt(job: Job[Any]) -> None:
    raise KeyboardInterrupt("by hand")


def leave(job: Job[Any]) -> None:
    raise SystemExit(3)


def close_generator(job: Job[Any]) -> None:
    raise GeneratorExit


def be_cancelled(job: Job[Any]) -> None:
    raise asyncio.CancelledError


class Unprintable(Exception):
    """Neither printed nor sent."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise TypeError("not to be sent")


class UnprintableThatExits(Exception):
    """Asking it for words would end the process."""

    def __str__(self) -> str:
        raise SystemExit(5)

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise SystemExit(5)


class Unpicklable(Exception):
    """Holds what cannot be sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Unreadable(Exception):
    """Can be sent, and be read once: where the process itself tries it."""

    def __reduce__(self) -> Any:
        return read_in_child, (os.getpid(), str(self))


def read_in_child(pid: int, message: str) -> Unreadable:
    if os.getpid() != pid:
        raise SystemExit(message)
    return Unreadable(message)


class Unavailable(Exception):
    """What HTTP clients raise: it carries a status, and cannot be pickled."""

    status_code = 503

    def __init__(self, message: str, *, response: object) -> None:
        super().__init__(message)
        self.response = response


def raise_unprintable(job: Job[Any]) -> None:
    raise Unprintable


def raise_unprintable_that_exits(job: Job[Any]) -> None:
    raise UnprintableThatExits


def raise_unpicklable(job: Job[Any]) -> None:
    raise Unpicklable("cannot be sent")


def raise_unreadable(job: Job[Any]) -> None:
    raise Unreadable("cannot be read")


def raise_unavailable(job: Job[Any]) -> None:
    raise Unavailable("try again", response=None)


def raise_huge(job: Job[Any]) -> None:
    raise ConnectionError("x" * 30_000_000)


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
