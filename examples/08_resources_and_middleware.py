"""What tasks need: resources of the worker, dependencies of each attempt, and middleware around every job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from toril import App, Context, Depends
from toril.app import Proceed


@dataclass
class Database:
    rows: list[str] = field(default_factory=list)


@dataclass
class Resources:
    database: Database


async def lifespan(app: App) -> AsyncIterator[Resources]:
    resources = Resources(Database())
    yield resources
    print("stored:", resources.database.rows)


async def transaction(ctx: Context[Resources]) -> AsyncIterator[Database]:
    changes = Database()
    yield changes
    ctx.resources.database.rows += changes.rows  # only if the task did not raise


async def logged(ctx: Context, proceed: Proceed) -> Any:
    result = await proceed()
    print(ctx.task.name, dict(ctx.arguments), "->", result)
    return result


app = App(lifespan=lifespan, middleware=[logged])


@app.task(queue="orders")
async def ship(ctx: Context[Resources], order: int, db: Database = Depends(transaction)) -> str:
    db.rows.append(f"order {order}")
    return f"attempt {ctx.attempt}"


async def main() -> None:
    await ship.enqueue(7)
    async with app, app.worker() as worker:
        await worker.run_until_idle()


asyncio.run(main())

# prints:
# ship {'order': 7} -> attempt 1
# stored: ['order 7']
