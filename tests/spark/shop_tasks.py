"""Tasks of an app, which executors import by the name of this module."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from toril import App


class Prices:
    """A resource of the lifespan."""

    def of(self, item: str) -> int:
        return len(item)


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[Prices]:
    yield Prices()


app = App(lifespan=lifespan)


@app.task(queue="orders")
async def order(item: str, count: int, prices: Prices) -> int:
    return prices.of(item) * count


@app.task(queue="mails")
def greet(name: str) -> str:
    return f"hello {name}"
