"""The outbox of SQLAlchemy on PostgreSQL and SQLite, and a small run with kills."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, func, select, update
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from tests.integrations import outbox_kills
from tests.servers import Postgres, Server
from tests.waiting import until, wait_until
from toril import App, InvalidOption, sync
from toril.app import Task
from toril.integrations.outbox import OutboxRelay, OutboxRow, RelayOptions, declare_relay_task
from toril.integrations.outbox.relay import in_steps
from toril.integrations.outbox.sqlalchemy import SqlAlchemyOutbox, SqlAlchemyStore


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def outbox() -> SqlAlchemyOutbox:
    return SqlAlchemyOutbox(MetaData())


@pytest.fixture(params=["postgresql", "sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/outbox.sqlite3"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url


@pytest.fixture
def engine(database: str, outbox: SqlAlchemyOutbox) -> Iterator[Engine]:
    made = create_engine(database)
    metadata = outbox.rows.metadata
    metadata.create_all(made)
    yield made
    metadata.drop_all(made)
    made.dispose()


@pytest.fixture
def app(valkey: Server, prefix: str) -> App:
    return App(redis=valkey.url, prefix=prefix)


@pytest.fixture
def ship(app: App) -> Task[[int], Any]:
    @app.task(queue="orders", attempts=3)
    async def ship(number: int) -> int:
        return number

    return ship


@pytest.fixture
def queue(valkey: Server, prefix: str) -> Iterator[sync.Queue[Any]]:
    with sync.Queue("orders", redis=valkey.url, prefix=prefix) as made:
        yield made


@pytest.fixture
def relay(app: App, engine: Engine, outbox: SqlAlchemyOutbox) -> Iterator[OutboxRelay]:
    made = OutboxRelay(app, SqlAlchemyStore(engine, outbox), RelayOptions(rows=3, poll=0.01))
    yield made
    made.close()


def write(
    engine: Engine,
    outbox: SqlAlchemyOutbox,
    ship: Task[[int], Any],
    numbers: Sequence[int],
    key: str | None = None,
) -> list[str]:
    with Session(engine) as session, session.begin():
        return [outbox.enqueue(session, ship.bind(number), key=key) for number in numbers]


def test_committed_rows_become_jobs_with_the_ids_of_the_rows_in_order(
    engine: Engine,
    outbox: SqlAlchemyOutbox,
    ship: Task[[int], Any],
    relay: OutboxRelay,
    queue: sync.Queue[Any],
) -> None:
    ids = write(engine, outbox, ship, range(7), key="one")
    with Session(engine) as session:
        outbox.enqueue(session, ship.bind(99))
        session.rollback()
    assert queue.count() == 0
    assert relay.send_all() == 7
    jobs = queue.get_waiting()
    assert [job.id for job in jobs] == ids
    assert [(job.name, job.data, job.options.attempts) for job in jobs] == [
        ("ship", {"number": number}, 3) for number in range(7)
    ]
    assert relay.send_all() == 0


def test_a_row_whose_mark_was_lost_is_not_added_again(
    engine: Engine,
    outbox: SqlAlchemyOutbox,
    ship: Task[[int], Any],
    relay: OutboxRelay,
    queue: sync.Queue[Any],
) -> None:
    write(engine, outbox, ship, range(3))
    assert relay.send_some() == 3
    queue.drain()  # as if the jobs had ended and were removed
    with engine.begin() as connection:  # as if the database had died before the commit
        connection.execute(update(outbox.rows).values(sent_at=None))
    assert relay.send_some() == 3
    assert queue.count() == 0


def test_entries_of_the_ledger_live_until_their_rows_are_deleted(
    engine: Engine,
    outbox: SqlAlchemyOutbox,
    ship: Task[[int], Any],
    app: App,
    valkey: Server,
    prefix: str,
) -> None:
    write(engine, outbox, ship, range(3))
    relay = OutboxRelay(app, SqlAlchemyStore(engine, outbox), RelayOptions(keep=1e-6))
    try:
        assert relay.send_all() == 3
        (key,) = valkey_keys(valkey, f"{prefix}:orders:toril:ledger:rows:outbox:*")
        with valkey.client() as client:
            before = client.hlen(key)
            assert relay.remove_expired() == 3
            assert client.hlen(key) == before - 3
        with engine.connect() as connection:
            assert connection.execute(select(func.count()).select_from(outbox.rows)).scalar() == 0
        assert relay.remove_expired() == 0
    finally:
        relay.close()


def valkey_keys(valkey: Server, pattern: str) -> list[bytes]:
    with valkey.client() as client:
        return list(client.scan_iter(match=pattern))


@pytest.mark.parametrize("options", ["not JSON", '{"attempts": 1, "priority": "high"}'])
def test_a_refused_row_holds_back_its_key_and_no_other(
    options: str,
    engine: Engine,
    outbox: SqlAlchemyOutbox,
    ship: Task[[int], Any],
    relay: OutboxRelay,
    queue: sync.Queue[Any],
) -> None:
    refused, held = write(engine, outbox, ship, [1, 2], key="a")
    other, plain = write(engine, outbox, ship, [3], key="b") + write(engine, outbox, ship, [4])
    with engine.begin() as connection:  # a job that no script can add
        wrong = update(outbox.rows).where(outbox.rows.c.id == refused)
        connection.execute(wrong.values(options=options))
    assert relay.send_all() == 2
    assert {job.id for job in queue.get_jobs(["wait", "prioritized"])} == {other, plain}
    with engine.begin() as connection:
        error = connection.execute(select(outbox.rows.c.error).where(outbox.rows.c.id == refused)).scalar()
        assert error
        repaired = update(outbox.rows).where(outbox.rows.c.id == refused)
        connection.execute(repaired.values(error=None, options='{"attempts": 1}'))
    assert relay.send_all() == 2
    ids = [job.id for job in queue.get_waiting()]
    assert ids.index(refused) < ids.index(held)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_second_relay_stands_by(
    engine: Engine, outbox: SqlAlchemyOutbox, ship: Task[[int], Any], relay: OutboxRelay
) -> None:
    relay.send_all()  # makes the row that relays lock
    write(engine, outbox, ship, range(3))
    store = SqlAlchemyStore(engine, outbox)
    with store.unsent(10) as batch:
        assert batch is not None
        assert len(batch.rows) == 3
        assert relay.send_some() == 0
        assert relay.remove_expired() == 0
    assert relay.send_some() == 3


def test_the_relay_runs_as_a_thread_and_survives_an_outage_of_redis(
    engine: Engine, outbox: SqlAlchemyOutbox, start_valkey: Any, prefix: str
) -> None:
    server = start_valkey(appendonly="yes", appendfsync="always")
    app = App(redis=server.url, prefix=prefix)

    @app.task(queue="orders")
    async def ship(number: int) -> None: ...

    options = RelayOptions(poll=0.01, longest_pause=0.2)
    with OutboxRelay(app, SqlAlchemyStore(engine, outbox), options) as relay:
        server.kill()
        write(engine, outbox, ship, range(5))
        relay.wake()
        server.start()
        with sync.Queue("orders", redis=server.url, prefix=prefix) as queue:
            wait_until(lambda: queue.count() >= 5, "the relay has added the jobs")
            assert [job.data["number"] for job in queue.get_waiting()] == list(range(5))


async def test_the_relay_runs_as_a_task_of_the_app(
    engine: Engine, outbox: SqlAlchemyOutbox, app: App, ship: Task[[int], Any], relay: OutboxRelay
) -> None:
    declare_relay_task(app, relay, every=0.2)
    (job_id,) = await asyncio.to_thread(write, engine, outbox, ship, [5])
    async with app, app.worker():
        queue: Any = app.get_queue("orders")
        job: Any = await until(lambda: queue.get_job(job_id), "the relay has added the job")
        assert await job.wait_until_finished(10) == 5


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_session_of_asyncio_writes_rows(
    engine: Engine, outbox: SqlAlchemyOutbox, ship: Task[[int], Any], relay: OutboxRelay, database: str
) -> None:
    asynchronous = create_async_engine(database)
    async with asynchronous.begin() as connection:
        await outbox.enqueue_async(connection, ship.bind(1))
    await asynchronous.dispose()
    assert await asyncio.to_thread(relay.send_all) == 1


def test_what_cannot_be_sent_is_refused_before_it_is_written(app: App, outbox: SqlAlchemyOutbox) -> None:
    @app.task(queue="list:plain")
    async def listed() -> None: ...

    @app.task
    async def plain() -> None: ...

    with pytest.raises(InvalidOption, match="not a BullMQ queue"):
        outbox.insert(listed.bind())
    with pytest.raises(InvalidOption, match="has the id of its row"):
        outbox.insert(plain.options(job_id="mine").bind())
    with pytest.raises(InvalidOption, match="key"):
        outbox.insert(plain.bind(), key="")
    with pytest.raises(InvalidOption, match="rows"):
        RelayOptions(rows=0)
    with pytest.raises(InvalidOption, match="poll"):
        RelayOptions(poll=0)


def test_a_call_to_the_server_has_one_row_of_a_key() -> None:
    rows = [
        OutboxRow(id=str(n), queue="q", name="n", data="{}", options="{}", key=key)
        for n, key in enumerate(["a", None, "a", "b", None, "a"])
    ]
    steps = [[row.id for row in step] for _, step in in_steps(rows)]
    assert steps == [["0", "1", "3", "4"], ["2"], ["5"]]


@pytest.mark.timeout(240)
def test_rows_become_one_job_each_while_relay_database_and_redis_are_killed() -> None:
    outcome = outbox_kills.run(rows=150, kills=1, seed=3)
    assert outcome.is_right, outcome
    assert outcome.committed >= 150
    assert outcome.kills == {"relay": 1, "database": 1, "redis": 1}
