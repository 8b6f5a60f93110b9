"""How the parent of several worker processes notifies systemd, and replaces a process that hangs.

Guarantee: READY is sent when all children are ready. A child that does not send WATCHDOG in time is killed, and the
supervisor starts another; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator

from toril.cli._output import warn
from toril.cli._service_notifier import ALIVE, PARENT_NOTIFY, READY, STOPPING, ServiceNotifier


class ChildWatch:
    """Reads the messages of the children from a pipe."""

    def __init__(self, count: int, notifier: ServiceNotifier) -> None:
        self._count = count
        self._notifier = notifier
        self._read_end, self.pipe = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self.pipe, False)  # a child does not wait for a parent that does not read
        self._rest = b""
        self._seen: dict[int, float] = {}  # children that are ready, and when they last sent WATCHDOG
        self._is_ready = False

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the children."""
        return {PARENT_NOTIFY: str(self.pipe)}

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches the children while the block runs."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._read_end, self._read)
        task = asyncio.create_task(self._keep_alive(), name="toril-child-watch")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            loop.remove_reader(self._read_end)
            os.close(self._read_end)
            os.close(self.pipe)

    def stopping(self) -> None:
        """The children were told to stop: they may be silent from now on."""
        self._notifier.send(STOPPING)
        self._seen.clear()
        self._is_ready = True

    def ended(self, pid: int) -> None:
        """A child has ended."""
        self._seen.pop(pid, None)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            *lines, self._rest = (self._rest + os.read(self._read_end, 65536)).split(b"\n")
            for line in lines:
                pid, _, text = line.decode().partition(" ")
                self._received(int(pid), text)

    def _received(self, pid: int, text: str) -> None:
        if text == READY or (text == ALIVE and pid in self._seen):
            self._seen[pid] = time.monotonic()
        if not self._is_ready and len(self._seen) == self._count:
            self._is_ready = True
            self._notifier.send(READY)

    async def _keep_alive(self) -> None:
        limit = self._notifier.watchdog
        while limit is not None:
            await asyncio.sleep(limit / 3)
            silent = [pid for pid, seen in self._seen.items() if time.monotonic() - seen > limit]
            for pid in silent:
                self.ended(pid)
                warn(f"worker process with the id {pid} sent no WATCHDOG for {limit:g} s; it is killed")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._is_ready:
                self._notifier.send(ALIVE)
