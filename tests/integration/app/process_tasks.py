"""Tasks that run in processes: a child imports them from here."""

from __future__ import annotations

import os

from toril import App, Depends
from toril.app import BlockingContext

app = App()


def factor() -> int:
    return 3


@app.task(queue="numbers", executor="process")
def multiply(n: int, by: int = Depends(factor)) -> tuple[int, int]:
    return n * by, os.getpid()


@app.task(queue="numbers", executor="process")
def note(ctx: BlockingContext, text: str) -> int:
    return ctx.log(text)


@app.task(queue="numbers", executor="process")
def add_first(pairs: list[tuple[int, int]]) -> int:
    return sum(first for first, _ in pairs)
