"""The progress of a pipeline by step: a bar in a terminal, otherwise a line for each step that takes a while.

Guarantee: it is written to standard error, so that what a command prints stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_A_WHILE = 1.0  # seconds: a run with nothing new prints no steps
OnStep = Callable[
    [str, int, int], object
]  # the name of the step that begins, how many are done, and of how many


@contextmanager
def step_progress(*, quiet: bool = False) -> Iterator[OnStep]:
    """Shows the steps that it is told of; `quiet` shows nothing."""
    screen = Console(stderr=True)
    if quiet:
        yield lambda *_: None
    elif screen.is_terminal:
        with _bar(screen) as on_step:
            yield on_step
    else:
        lines = _Lines()
        yield lines.begin
        lines.end()


class _Lines:
    """Prints how long each step took."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._step, self._began = "", 0.0

    def begin(self, name: str, done: int, count: int) -> None:
        self.end()
        self._step, self._began = f"step {done + 1} of {count}: {name}", self._now()

    def end(self) -> None:
        seconds = self._now() - self._began
        if self._step and seconds >= _A_WHILE:
            typer.echo(f"{self._step}, {seconds:.1f} s", err=True)
        self._step = ""


@contextmanager
def _bar(screen: Console) -> Iterator[OnStep]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        bar = progress.add_task("", total=None)
        yield lambda name, done, count: progress.update(bar, description=name, completed=done, total=count)
