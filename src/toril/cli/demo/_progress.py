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

from toril.cli._output import console, print_line
from toril.cli.demo._workload import Tally

# Seconds between two updates of the bars, and between two lines.
DRAW_EVERY = 0.05
LINE_EVERY = 0.5
MOST_REPORTS = 5


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
        print_line(
            f"  {elapsed:4.1f} s  {tally.done:>5} of {tally.added} done   "
            f"completed {tally.completed}  failed {tally.failed}  retries {tally.retried}"
        )

    def close(self) -> None:
        self._line(time.monotonic() - self._began)


class BarDisplay:
    """Draws bars: one for all jobs and one for each running report."""

    def __init__(self, tally: Tally, screen: Console) -> None:
        self._tally = tally
        self._progress = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=screen,
        )
        self._all = self._progress.add_task("jobs", total=tally.added, note="")
        self._reports: dict[str, TaskID] = {}
        self._progress.start()

    def draw(self) -> None:
        tally = self._tally
        note = f"failed {tally.failed}  retries {tally.retried}"
        self._progress.update(self._all, completed=tally.done, total=tally.added, note=note)
        for job_id in list(self._reports):
            if job_id not in tally.reports:
                self._progress.remove_task(self._reports.pop(job_id))
        for job_id, part in list(tally.reports.items())[:MOST_REPORTS]:
            if job_id not in self._reports:
                self._reports[job_id] = self._progress.add_task(f"report {job_id[:8]}", total=100, note="")
            self._progress.update(self._reports[job_id], completed=round(part * 100))

    def close(self) -> None:
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
