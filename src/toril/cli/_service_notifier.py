"""Reports to systemd that the worker is ready, alive and stopping (`Type=notify`, `WatchdogSec=`), without a library.

Guarantee: without NOTIFY_SOCKET nothing is sent. READY is sent when all workers run, WATCHDOG while they are alive and
the event loop turns. A message that cannot be sent is dropped: a worker does not end because of its service manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from toril.observe.health import ReportsHealth

SOCKET, WATCHDOG_USEC, WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
# The pipe to the parent of several worker processes, which sends the notifications of all of them to systemd.
PARENT_NOTIFY: Final = "TORIL_WORKER_NOTIFY"
READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
_LOOK_SECONDS: Final = 0.05  # between two looks at workers that start
_STATE_SECONDS: Final = 1.0  # between two looks at workers that run
_ENDING: Final = ("shutting down", "stopped")


@dataclass(frozen=True, slots=True)
class ServiceNotifier:
    """Where notifications are sent, and how often WATCHDOG is expected."""

    send: Callable[[str], None]
    watchdog: float | None  # seconds; None: WATCHDOG is not expected

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ServiceNotifier | None:
        """Returns None if the environment names no receiver."""
        seconds = watchdog_seconds(environment)
        pipe = environment.get(PARENT_NOTIFY)
        if pipe is not None:
            return cls(lambda text: _write(int(pipe), text), seconds)
        address = environment.get(SOCKET, "")
        if address[:1] not in ("/", "@"):
            return None
        return cls(lambda text: _send(address, text), seconds)

    @contextlib.asynccontextmanager
    async def reporting(self, workers: Sequence[ReportsHealth]) -> AsyncIterator[None]:
        """Sends READY when all workers run, WATCHDOG while they are alive, and STOPPING when they stop."""
        reported: list[str] = []  # the states that were sent
        task = asyncio.create_task(self._report(workers, reported), name="toril-service-notifier")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            if reported == [READY]:
                self.send(STOPPING)

    async def _report(self, workers: Sequence[ReportsHealth], reported: list[str]) -> None:
        while True:
            self._report_state(workers, reported)
            await asyncio.sleep(self._pause if reported else _LOOK_SECONDS)

    def _report_state(self, workers: Sequence[ReportsHealth], reported: list[str]) -> None:
        """Sends what has changed, and WATCHDOG."""
        states = [one.health() for one in workers]
        is_alive = all(one.alive for one in states)
        is_ending = any(one.state in _ENDING for one in states)
        due = STOPPING if reported == [READY] and is_ending else READY if not reported and is_alive else None
        if due is not None:
            reported.append(due)
            self.send(due)
        # Running jobs may finish: a worker that stops is alive as long as its loop turns.
        if self.watchdog is not None and reported and (is_alive or is_ending):
            self.send(ALIVE)

    @property
    def _pause(self) -> float:
        return _STATE_SECONDS if self.watchdog is None else min(_STATE_SECONDS, self.watchdog / 3)


def watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """Returns how often systemd expects WATCHDOG from this process; None: not at all."""
    meant = environment.get(WATCHDOG_PID)
    if meant is not None and meant != str(os.getpid()) and PARENT_NOTIFY not in environment:
        return None
    try:
        seconds = int(environment.get(WATCHDOG_USEC, "")) / 1e6
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def _send(address: str, text: str) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)


def _write(pipe: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(pipe, f"{os.getpid()} {text}\n".encode())
