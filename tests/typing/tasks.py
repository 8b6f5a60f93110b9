"""A user's application, read by the strict type checkers: mypy and pyright must accept it.

`tests/unit/packaging/test_typed_applications.py` plants mistakes in it, and expects an error for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, assert_type

import msgspec

from toril import App, Context, Depends, Job, sync
from toril.app import Proceed, TaskCall, chain, parallel, parallel_then


@dataclass
class Receipt:
    number: int


class Page(msgspec.Struct):
    text: str


class Database:
    async def save(self, receipt: Receipt) -> None: ...


@dataclass
class Resources:
    database: Database


async def lifespan(_app: App) -> AsyncIterator[Resources]:
    yield Resources(Database())


async def transaction(ctx: Context[Resources]) -> AsyncIterator[Database]:
    yield ctx.resources.database


async def timed(_ctx: Context, proceed: Proceed) -> Any:
    return await proceed()


app = App(lifespan=lifespan, middleware=[timed], concurrency=10)


@app.task(queue="emails", attempts=5, job_timeout=30, retry_on=(OSError,))
async def send(
    ctx: Context[Resources], to: str, copies: int = 1, db: Database = Depends(transaction)
) -> Receipt:
    await ctx.log(to)
    await ctx.resources.database.save(Receipt(copies))
    await db.save(Receipt(copies))
    return Receipt(copies)


@app.task
async def store(data: dict[str, Any]) -> Page:
    return Page(str(data))


@app.task(queue="files", executor="process")
def measure(path: str) -> int:
    return len(path)


@app.task
async def merge(sizes: list[int]) -> str:
    return str(sizes)


async def use() -> None:
    job = await send.enqueue("a@b.c", copies=2)
    receipt = await job.result(timeout=10)
    assert_type(receipt, Receipt)
    assert_type(await send("a@b.c"), Receipt)
    assert_type(send.bind("a@b.c"), TaskCall[Receipt])
    assert_type(await (await store.enqueue({"a": 1})).result(), Page)
    assert_type(measure("file"), int)
    assert_type(await (await measure.enqueue("file")).result(), int)
    many = await send.options(delay=60, priority=3).enqueue_many([send.bind("a@b.c")])
    assert_type(many, list[Job[dict[str, Any], Receipt]])
    send.bind("a@b.c").schedule(cron="0 3 * * *")
    assert_type(await (await parallel(measure.bind("a"), measure.bind("b")).enqueue()).result(), list[int])
    assert_type(await (await parallel_then([measure.bind("a")], merge).enqueue()).result(), str)
    assert_type(await (await chain(measure.bind("a"), store.bind({})).enqueue()).result(), Page)


blocking = sync.App()


@blocking.task(queue="emails")
def notify(ctx: sync.Context, to: str) -> Receipt:
    ctx.log(to)
    return Receipt(1)


def use_without_a_loop() -> None:
    assert_type(notify.enqueue("a@b.c").result(timeout=10), Receipt)
    assert_type(sync.Task(send).enqueue("a@b.c").result(), Receipt)
