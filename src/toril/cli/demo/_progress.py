"""The demo while it runs: bars in a terminal, a line now and then elsewhere.

Guarantee: nothing is drawn with control sequences when standard output is no terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from toril.cli._output import console, say
from toril.cli.demo._workload import Tally

# In a terminal it looks alive; in a log a line every half second is plenty.
DRAW_EVERY = 0.05
LINE_EVERY = 0.5
MOST_REPORTS = 5


class Board(Protocol):
    """Shows a tally."""

    def draw(self) -> None: ...
    def close(self) -> None: ...


class LineBoard:
    """For pipes and logs."""

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
        say(
            f"  {elapsed:4.1f} s  {tally.done:>5} of {tally.added} done   "
            f"completed {tally.completed}  failed {tally.failed}  retries {tally.retried}"
        )

    def close(self) -> None:
        self._line(time.monotonic() - self._began)


class BarBoard:
    """For terminals: a bar for all jobs and one for each report in hand."""

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
async def drawn(tally: Tally, *, quiet: bool) -> AsyncIterator[None]:
    """Draws the tally again and again while the block runs."""
    if quiet:
        yield
        return
    screen = console()
    board: Board = BarBoard(tally, screen) if screen.is_terminal else LineBoard(tally)
    drawing = asyncio.create_task(_draw(board))
    try:
        yield
    finally:
        drawing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drawing
        board.close()


async def _draw(board: Board) -> None:
    while True:
        board.draw()
        await asyncio.sleep(DRAW_EVERY)
