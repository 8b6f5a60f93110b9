"""The tests of the shop. They need no server: SQLite is a file, and the queues are on the embedded server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from examples.shop.shop import Base, Order, app, outbox, place, ship, shop
from toril import App
from toril.integrations.outbox import OutboxRelay
from toril.integrations.outbox.sqlalchemy import SqlAlchemyStore
from toril.testing import drain


@pytest.fixture(autouse=True)
def database(tmp_path: Path) -> Iterator[None]:
    """An empty database."""
    shop.engine = create_engine(f"sqlite:///{tmp_path}/shop.sqlite3")
    Base.metadata.create_all(shop.engine)
    yield
    shop.engine.dispose()


def states() -> list[str]:
    with Session(shop.engine) as session:
        return list(session.execute(select(Order.state)).scalars())


async def test_the_task_ships_an_order() -> None:
    placed = place("ada", "tea")
    with app.testing("inline"):
        job = await ship.enqueue(int(placed["order"]))
        assert await job.result() == f"order {placed['order']} is on its way"
    assert states() == ["shipped"]


async def test_a_placed_order_is_shipped_once(toril_app: Callable[[App], App]) -> None:
    place("ada", "tea")
    with pytest.raises(LookupError):
        place("ada", "unicorn")
    async with toril_app(app):
        relay = OutboxRelay(app, SqlAlchemyStore(shop.engine, outbox))
        assert (relay.send_all(), relay.send_all()) == (1, 0)
        relay.close()
        assert (await drain(app)).processed == 1
    assert states() == ["shipped"]
