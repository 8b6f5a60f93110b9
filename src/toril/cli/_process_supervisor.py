"""Several worker processes under one parent.

Guarantee: a child that dies is replaced, with growing delays if it keeps dying; signals to the parent are sent to every
child, which finishes its jobs after the first and puts them back after the second; children end with the parent, even
if it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toril.cli._child_watch import ChildWatch
from toril.cli._output import warn
from toril.cli._service_notifier import ServiceNotifier
from toril.protocol.backoff import reconnect_delay

# Seconds after which earlier failures of a child do not count any more.
STABLE_AFTER = 10.0
FIRST_DELAY, LONGEST_DELAY = 0.2, 30.0
USAGE_ERROR = 2
# Variables of a child: its index, and the pipe that closes when its parent ends.
INDEX, PARENT_PIPE = "TORIL_WORKER_INDEX", "TORIL_WORKER_LIFELINE"


@dataclass(slots=True)
class _Slot:
    """One child and its restarts."""

    index: int
    process: asyncio.subprocess.Process | None = None
    failures: int = 0
    code: int | None = None
    started: float = field(default_factory=time.monotonic)


class ProcessSupervisor:
    """Keeps `count` children running until it is stopped."""

    def __init__(self, arguments: Sequence[str], count: int, environment: Mapping[str, str]) -> None:
        self._arguments = list(arguments)
        self._environment = dict(environment)
        self._slots = [_Slot(index) for index in range(count)]
        self._stopping = asyncio.Event()
        self._signals = 0
        self._read_end, self._write_end = os.pipe()
        notifier = ServiceNotifier.from_environment(os.environ)
        self._watch = None if notifier is None else ChildWatch(count, notifier)

    async def run(self) -> int:
        """Runs the children; returns 0 if all of them ended with 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._terminate_children)
        watching = contextlib.nullcontext() if self._watch is None else self._watch.watching()
        try:
            async with watching:
                await asyncio.gather(*(self._keep_running(slot) for slot in self._slots))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            os.close(self._write_end)
            os.close(self._read_end)
        return max((slot.code or 0 for slot in self._slots), default=0)

    def _terminate_children(self) -> None:
        self._signals += 1
        self._stopping.set()
        if self._watch is not None:
            self._watch.stopping()
        for slot in self._slots:
            if slot.process is not None and slot.process.returncode is None:
                slot.process.send_signal(signal.SIGTERM)

    async def _keep_running(self, slot: _Slot) -> None:
        while not self._stopping.is_set():
            code = await self._run_child(slot)
            if self._stopping.is_set() and code == -signal.SIGTERM:
                code = 0  # It had not installed its signal handler yet, and had no jobs.
            slot.code = code if code >= 0 else 1
            if code == 0 or self._stopping.is_set():
                return
            if code == USAGE_ERROR:
                self._terminate_children()  # Another child would end with the same error.
                return
            await self._wait_before_restart(slot, code)

    async def _run_child(self, slot: _Slot) -> int:
        slot.started = time.monotonic()
        own = {INDEX: str(slot.index), PARENT_PIPE: str(self._read_end)}
        if self._watch is not None:
            own |= self._watch.environment
        slot.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "toril.cli",
            *self._arguments,
            env={**os.environ, **self._environment, **own},
            stdin=subprocess.DEVNULL,
            pass_fds=[self._read_end, *([] if self._watch is None else [self._watch.pipe])],
            start_new_session=True,  # Ctrl-C in the terminal reaches only the parent, which forwards it
        )
        if self._stopping.is_set():
            slot.process.send_signal(signal.SIGTERM)
        code = await slot.process.wait()
        if self._watch is not None:
            self._watch.ended(slot.process.pid)
        return code

    async def _wait_before_restart(self, slot: _Slot, code: int) -> None:
        slot.failures = 0 if time.monotonic() - slot.started > STABLE_AFTER else slot.failures + 1
        delay = reconnect_delay(slot.failures, initial=FIRST_DELAY, maximum=LONGEST_DELAY, jitter=0.2)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        warn(f"worker process {slot.index} died ({how}); the next one starts in {delay:.1f} s")
        try:
            async with asyncio.timeout(delay):
                await self._stopping.wait()
        except TimeoutError:
            return


def child_index() -> int | None:
    """Returns the index of this child; None if this process is not a child."""
    text = os.environ.get(INDEX)
    return int(text) if text is not None else None


def watch_parent(stop: asyncio.Event) -> None:
    """Sets `stop` when the parent has ended: the kernel then closes its end of the pipe."""
    text = os.environ.get(PARENT_PIPE)
    if text is None:
        return
    pipe = int(text)
    loop = asyncio.get_running_loop()

    def parent_ended() -> None:
        loop.remove_reader(pipe)
        stop.set()

    loop.add_reader(pipe, parent_ended)
