"""The progress of a pipeline by step: a bar in a terminal, otherwise a line for each step that takes a while.

Guarantee: it is written to standard error, so that what a command prints stays as it is. A run without steps imports
nothing for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import typer

from toril.protocol.clock import Clock

_A_WHILE = 1.0  # seconds: a short step prints no line
OnStep = Callable[
    [str, int, int], object
]  # the name of the step that begins, how many are done, and of how many


@contextmanager
def step_progress(*, quiet: bool = False) -> Iterator[OnStep]:
    """Shows the steps that are reported to it; `quiet` shows nothing."""
    shown: list[OnStep] = []
    with ExitStack() as until_end:

        def begin(name: str, done: int, count: int) -> None:
            if not shown:
                shown.append(until_end.enter_context(_steps_shown()))
            shown[0](name, done, count)

        yield (lambda *_: None) if quiet else begin


@contextmanager
def _steps_shown() -> Iterator[OnStep]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True)
    if not screen.is_terminal:
        lines = _Lines()
        yield lines.begin
        lines.end()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as progress:
        bar = progress.add_task("", total=None)
        yield lambda name, done, count: progress.update(bar, description=name, completed=done, total=count)


class _Lines:
    """Prints how long each step took."""

    def __init__(self, clock: Clock = time) -> None:
        self._clock = clock
        self._step, self._began = "", 0.0

    def begin(self, name: str, done: int, count: int) -> None:
        self.end()
        self._step, self._began = f"step {done + 1} of {count}: {name}", self._clock.monotonic()

    def end(self) -> None:
        seconds = self._clock.monotonic() - self._began
        if self._step and seconds >= _A_WHILE:
            typer.echo(f"{self._step}, {seconds:.1f} s", err=True)
        self._step = ""
