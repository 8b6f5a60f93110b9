"""A shop: FastAPI, SQLAlchemy, and tasks whose jobs are written in the transaction of the order.

`create_web(database)` makes the web application with its relay, and, for development, a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import FastAPI, HTTPException, Request, Response
from sqlalchemy import Engine, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from toril import App, Context
from toril.integrations.fastapi import job_events, toril_lifespan
from toril.integrations.outbox import OutboxRelay, RelayOptions
from toril.integrations.outbox.sqlalchemy import SqlAlchemyOutbox, SqlAlchemyStore


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order; the task changes `state`."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    product: Mapped[str]
    state: Mapped[str] = mapped_column(default="new")


@dataclass
class Shop:
    """What tasks and endpoints use: the database."""

    engine: Engine


outbox = SqlAlchemyOutbox(Base.metadata)
shop = Shop(create_engine("sqlite://"))  # replaced by `create_web`


async def lifespan(app: App) -> AsyncIterator[Shop]:
    """The resources of the worker."""
    yield shop


app = App(name="shop", lifespan=lifespan)
app.queue("orders", concurrency=20)


@app.task(queue="orders", attempts=5, job_timeout=30)
async def ship(ctx: Context[Shop], order: int) -> str:
    """Ships an order: may run twice, so that it does the same when it does."""
    await ctx.progress(50, "packed")
    await asyncio.to_thread(_set_state, ctx.resources.engine, order, "shipped")
    await ctx.progress(100, "shipped")
    return f"order {order} is on its way"


def _set_state(engine: Engine, order: int, state: str) -> None:
    with Session(engine) as session, session.begin():
        session.execute(update(Order).where(Order.id == order).values(state=state))


def place(customer: str, product: str) -> dict[str, str | int]:
    """Stores an order with its job: both are committed, or neither."""
    with Session(shop.engine) as session, session.begin():
        order = Order(customer=customer, product=product)
        session.add(order)
        session.flush()  # gives it its number
        job_id = outbox.enqueue(session, ship.bind(order.id), key=customer)
        if product == "unicorn":
            raise LookupError("out of stock")  # rolls back
        return {"order": order.id, "job": job_id}


def create_web(database: str, *, worker: bool = True) -> FastAPI:
    """The web application, with the relay of the outbox."""
    shop.engine = create_engine(database, pool_pre_ping=True)
    Base.metadata.create_all(shop.engine)

    @contextlib.asynccontextmanager
    async def relayed(_: FastAPI) -> AsyncIterator[None]:
        relay = OutboxRelay(app, SqlAlchemyStore(shop.engine, outbox), RelayOptions(poll=0.1))
        relay.start()
        try:
            yield
        finally:
            await asyncio.to_thread(relay.close)
            shop.engine.dispose()

    web = FastAPI(title="Shop", lifespan=toril_lifespan(app, worker=worker, lifespan=relayed))
    web.post("/orders", status_code=201)(create)
    web.get("/orders/{number}")(show)
    web.get("/jobs/{job_id}/events")(follow)
    return web


def create(customer: str, product: str) -> dict[str, str | int]:
    """Places an order."""
    try:
        return place(customer, product)
    except LookupError as error:
        raise HTTPException(422, str(error)) from None


def show(number: int) -> dict[str, str]:
    """The state of an order."""
    with Session(shop.engine) as session:
        order = session.get(Order, number)
        if order is None:
            raise HTTPException(404)
        return {"product": order.product, "state": order.state}


async def follow(request: Request, job_id: str) -> Response:
    """The progress of the shipment, as server-sent events."""
    return await job_events(request, "orders", job_id)
