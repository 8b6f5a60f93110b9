"""The app and the table of the tests of the outbox. Run as a program, it is a relay."""

from __future__ import annotations

import os
import sys

from sqlalchemy import MetaData, create_engine

from toril import App
from toril.integrations.outbox import OutboxRelay, RelayOptions
from toril.integrations.outbox.sqlalchemy import SqlAlchemyOutbox, SqlAlchemyStore

metadata = MetaData()
outbox = SqlAlchemyOutbox(metadata)


def make_app(redis: str, prefix: str) -> App:
    app = App(name="outbox", redis=redis, prefix=prefix)

    @app.task(queue="orders", remove_on_complete=True)
    async def ship(key: str, number: int) -> None: ...

    return app


if __name__ == "__main__":
    database, redis_url, own_prefix = sys.argv[1:]
    engine = create_engine(database, pool_pre_ping=True, connect_args={"connect_timeout": 5})
    relay = OutboxRelay(
        make_app(redis_url, own_prefix),
        SqlAlchemyStore(engine, outbox),
        RelayOptions(rows=50, poll=0.02, keep=3600, longest_pause=0.5),
    )
    print("ready", os.getpid(), flush=True)
    relay.run()
