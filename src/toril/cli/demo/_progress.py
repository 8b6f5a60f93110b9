"""The progress of the demo: bars in a terminal, otherwise lines.

Guarantee: no control sequences are printed if standard output is not a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from toril.cli._output import console, print_line
from toril.cli.demo._worker_part import Tally

# Seconds between two updates of the bars, and between two lines.
DRAW_EVERY = 0.05
LINE_EVERY = 1.0
MOST_RENDERS = 4


def print_heading(text: str, *, quiet: bool) -> None:
    """Prints the title of a part; bold in a terminal."""
    if not quiet:
        print_line("")
        console().print(Text(text, style="bold cyan"))


def print_fact(text: str, *, quiet: bool) -> None:
    """Prints one line below a heading."""
    if not quiet:
        print_line(f"   {text}")


class ProgressDisplay(Protocol):
    """Shows a tally."""

    def draw(self) -> None: ...
    def close(self) -> None: ...


class LineDisplay:
    """Prints lines, for pipes and logs."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._began = self._drawn = time.monotonic()

    def draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn >= LINE_EVERY:
            self._drawn = now
            self._line(now - self._began)

    def _line(self, elapsed: float) -> None:
        tally = self._tally
        parts = [f"{queue} {tally.ended.get(queue, 0)}/{total}" for queue, total in tally.totals.items()]
        print_line(f"   {elapsed:4.1f} s  {'  '.join(parts)}")

    def close(self) -> None:
        self._line(time.monotonic() - self._began)


class BarDisplay:
    """Draws bars: one for each queue and one for each running render."""

    def __init__(self, tally: Tally, screen: Console) -> None:
        self._tally = tally
        self._progress = Progress(
            TextColumn("   {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=screen,
        )
        self._queues = {
            queue: self._progress.add_task(queue, total=total) for queue, total in tally.totals.items()
        }
        self._renders: dict[str, TaskID] = {}
        self._progress.start()

    def draw(self) -> None:
        tally = self._tally
        for queue, bar in self._queues.items():
            self._progress.update(bar, completed=tally.ended.get(queue, 0))
        shown = dict(list(tally.renders.items())[:MOST_RENDERS])
        for title in self._renders.keys() - shown.keys():
            self._progress.remove_task(self._renders.pop(title))
        for title, percent in shown.items():
            if title not in self._renders:
                self._renders[title] = self._progress.add_task(f"  {title}", total=100)
            self._progress.update(self._renders[title], completed=round(percent))

    def close(self) -> None:
        self._tally.renders = {}
        self.draw()
        self._progress.stop()


@contextlib.asynccontextmanager
async def show_progress(tally: Tally, *, quiet: bool) -> AsyncIterator[None]:
    """Shows the tally while the block runs."""
    if quiet:
        yield
        return
    screen = console()
    display: ProgressDisplay = BarDisplay(tally, screen) if screen.is_terminal else LineDisplay(tally)
    drawing = asyncio.create_task(_refresh(display))
    try:
        yield
    finally:
        drawing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drawing
        display.close()


async def _refresh(display: ProgressDisplay) -> None:
    while True:
        display.draw()
        await asyncio.sleep(DRAW_EVERY)
