"""Many worker processes under one parent.

Guarantee: a child that dies is replaced, ever more slowly if it keeps dying; signals to the parent reach every child,
the first as a request to finish, the second as an order to stop; children never outlive the parent, even a killed one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from toril.cli._output import warn
from toril.protocol.backoff import reconnect_delay

# A child that lived this long was well; its death is the first of a new row.
WELL_AFTER = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
MISUSED = 2
# Which child a process is, and the pipe whose end tells it that its parent is gone.
INDEX, LIFELINE = "TORIL_WORKER_INDEX", "TORIL_WORKER_LIFELINE"


@dataclass(slots=True)
class _Place:
    """One of the places for children."""

    index: int
    process: asyncio.subprocess.Process | None = None
    deaths: int = 0
    code: int | None = None
    began: float = field(default_factory=time.monotonic)


class ProcessSupervisor:
    """Keeps `count` children running until they are told to stop."""

    def __init__(self, words: Sequence[str], count: int, environment: Mapping[str, str]) -> None:
        self._words = list(words)
        self._environment = dict(environment)
        self._places = [_Place(index) for index in range(count)]
        self._stopping = asyncio.Event()
        self._signals = 0
        self._read_end, self._write_end = os.pipe()

    async def run(self) -> int:
        """The exit code: 0 if every child ended as it was told."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on)
        try:
            await asyncio.gather(*(self._keep(place) for place in self._places))
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            os.close(self._write_end)
            os.close(self._read_end)
        return max((place.code or 0 for place in self._places), default=0)

    def _pass_on(self) -> None:
        self._signals += 1
        self._stopping.set()
        for place in self._places:
            if place.process is not None and place.process.returncode is None:
                place.process.send_signal(signal.SIGTERM)

    async def _keep(self, place: _Place) -> None:
        while not self._stopping.is_set():
            code = await self._live(place)
            if self._stopping.is_set() and code == -signal.SIGTERM:
                code = 0  # It had not yet come to listen for our signal, and had nothing in hand.
            place.code = code if code >= 0 else 1
            if code == 0 or self._stopping.is_set():
                return
            if code == MISUSED:
                self._pass_on()  # Another child would be refused for the same reason.
                return
            await self._mourn(place, code)

    async def _live(self, place: _Place) -> int:
        place.began = time.monotonic()
        place.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "toril.cli",
            *self._words,
            env={**os.environ, **self._environment, INDEX: str(place.index), LIFELINE: str(self._read_end)},
            stdin=subprocess.DEVNULL,
            pass_fds=[self._read_end],
            start_new_session=True,  # Ctrl-C in the terminal is for the parent, which passes it on
        )
        if self._stopping.is_set():
            place.process.send_signal(signal.SIGTERM)
        return await place.process.wait()

    async def _mourn(self, place: _Place, code: int) -> None:
        place.deaths = 0 if time.monotonic() - place.began > WELL_AFTER else place.deaths + 1
        pause = reconnect_delay(place.deaths, initial=FIRST_PAUSE, maximum=LONGEST_PAUSE, jitter=0.2)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        warn(f"worker process {place.index} died ({how}); the next one starts in {pause:.1f} s")
        try:
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        except TimeoutError:
            return


def child_index() -> int | None:
    """Which child this process is; None: it has no foreman."""
    text = os.environ.get(INDEX)
    return int(text) if text is not None else None


def watch_parent(stop: asyncio.Event) -> None:
    """Sets `stop` when the parent is gone: the kernel closes its end of the pipe, however it ended."""
    text = os.environ.get(LIFELINE)
    if text is None:
        return
    lifeline = int(text)
    loop = asyncio.get_running_loop()

    def gone() -> None:
        loop.remove_reader(lifeline)
        stop.set()

    loop.add_reader(lifeline, gone)
