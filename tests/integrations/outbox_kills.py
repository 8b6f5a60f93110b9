"""Kills the relay, the database and Redis while rows go through the outbox.

    python -m tests.integrations.outbox_kills --rows 10000 --kills 20

Every committed row must become one job, in the order of its key. Jobs are removed all the time, as if they had ended,
so that only the ledger can know them. What was added is read from the events of the queue: `added` once for each row.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, func, select
from sqlalchemy.exc import DBAPIError

from tests.integrations.outbox_app import make_app, metadata, outbox
from tests.servers import Postgres, Server
from toril import sync

REPOSITORY = Path(__file__).parents[2]
KEYS = 7
ROWS_OF_A_TRANSACTION = 5
PREFIX = "outboxkills"


@dataclass(frozen=True)
class Outcome:
    """What a run has shown."""

    committed: int
    added: int  # jobs, each counted once
    doubled: int
    missing: int
    foreign: int  # jobs without a committed row
    out_of_order: int
    kills: dict[str, int]

    @property
    def is_right(self) -> bool:
        return (self.added, self.doubled, self.missing, self.foreign, self.out_of_order) == (
            self.committed,
            0,
            0,
            0,
            0,
        )


class Writer(threading.Thread):
    """Commits rows until there are enough; every fourth transaction is rolled back."""

    def __init__(self, engine: Engine, rows: int) -> None:
        super().__init__(name="writer")
        self._engine = engine
        self._rows = rows
        self._app = make_app("redis://127.0.0.1:1", PREFIX)  # not used: rows are written to the database

    def run(self) -> None:
        ship = self._app.tasks["ship"]
        number = transactions = 0
        while self._committed() < self._rows:
            transactions += 1
            with contextlib.suppress(DBAPIError), self._engine.begin() as connection:
                for _ in range(ROWS_OF_A_TRANSACTION):
                    number += 1
                    key = f"key-{number % KEYS}"
                    outbox.enqueue(connection, ship.bind(key, number), key=key)
                if transactions % 4 == 0:
                    connection.rollback()

    def _committed(self) -> int:
        while True:
            try:
                with self._engine.connect() as connection:
                    return int(connection.execute(select(func.count()).select_from(outbox.rows)).scalar_one())
            except DBAPIError:
                time.sleep(0.02)


class Relay:
    """The relay in a process of its own."""

    def __init__(self, database: str, redis: str) -> None:
        self._command = [sys.executable, "-m", "tests.integrations.outbox_app", database, redis, PREFIX]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # `close` closes it
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def close(self) -> None:
        self.kill()
        self._log.close()


def run(rows: int, kills: int, seed: int = 1) -> Outcome:
    """Sends rows through the outbox while each of the three is killed `kills` times."""
    chance = random.Random(seed)
    with (
        Postgres() as postgres,
        Server.redis7(appendonly="yes", appendfsync="always") as redis,
        contextlib.ExitStack() as stack,
    ):
        engine = create_engine(postgres.url, pool_pre_ping=True, connect_args={"connect_timeout": 5})
        stack.callback(engine.dispose)
        metadata.create_all(engine)
        with sync.Queue("orders", redis=redis.url, prefix=PREFIX, events_max_len=10_000_000):
            pass
        relay = Relay(postgres.url, redis.url)
        stack.callback(relay.close)
        writer = Writer(engine, rows)
        writer.start()
        killed: Counter[str] = Counter()
        for kind in _shuffled(chance, kills):
            _wait_for_progress(engine, chance.randint(1, max(2, rows // (8 * kills))))
            _remove_jobs(redis)
            _kill(kind, relay, postgres, redis)
            killed[kind] += 1
        writer.join()
        _wait_until_sent(engine)
        return _outcome(engine, redis, dict(killed))


def _shuffled(chance: random.Random, kills: int) -> list[str]:
    kinds = ["relay", "database", "redis"] * kills
    chance.shuffle(kinds)
    return kinds


def _kill(kind: str, relay: Relay, postgres: Postgres, redis: Server) -> None:
    victim: Any = {"relay": relay, "database": postgres, "redis": redis}[kind]
    victim.kill()
    victim.start()


def _sent(engine: Engine) -> tuple[int, int]:
    """Rows that are sent, and rows that are not."""
    while True:
        try:
            with engine.connect() as connection:
                counted = select(func.count(outbox.rows.c.sent_at), func.count())
                sent, all_rows = connection.execute(counted.select_from(outbox.rows)).one()
                return sent, all_rows - sent
        except DBAPIError:
            time.sleep(0.02)


def _wait_for_progress(engine: Engine, rows: int) -> None:
    """Returns when the relay has sent some rows more, or all."""
    before, _ = _sent(engine)
    deadline = time.monotonic() + 2.0  # a kill during the recovery of the one before is wanted, too
    while time.monotonic() < deadline and _sent(engine)[0] < before + rows:
        time.sleep(0.005)


def _wait_until_sent(engine: Engine) -> None:
    deadline = time.monotonic() + 300
    while _sent(engine)[1]:
        assert time.monotonic() < deadline, f"{_sent(engine)[1]} rows are not sent"
        time.sleep(0.02)


def _remove_jobs(redis: Server) -> None:
    """As if they had ended: from now on only the ledger knows them."""
    with sync.Queue("orders", redis=redis.url, prefix=PREFIX) as queue:
        queue.drain()


def _added(redis: Server) -> Iterator[str]:
    with redis.client() as client:
        after = "-"
        while page := client.xrange(f"{PREFIX}:orders:events", after, "+", 1000):
            for id, fields in page:
                after = f"({id.decode()}"
                if fields[b"event"] == b"added":
                    yield fields[b"jobId"].decode()


def _outcome(engine: Engine, redis: Server, kills: dict[str, int]) -> Outcome:
    with engine.connect() as connection:
        found = connection.execute(select(outbox.rows.c.id, outbox.rows.c.key, outbox.rows.c.position))
        rows = {id: (key, position) for id, key, position in found}
    added = list(_added(redis))
    counts = Counter(added)
    newest: dict[str, int] = {}
    out_of_order = 0
    for key, position in (rows[id] for id in added if id in rows):
        out_of_order += position < newest.get(key, 0)
        newest[key] = max(position, newest.get(key, 0))
    return Outcome(
        committed=len(rows),
        added=len(counts),
        doubled=sum(count > 1 for count in counts.values()),
        missing=len(rows.keys() - counts.keys()),
        foreign=len(counts.keys() - rows.keys()),
        out_of_order=out_of_order,
        kills=kills,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20, help="of each: relay, database and Redis")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    started = time.monotonic()
    outcome = run(given.rows, given.kills, given.seed)
    print(f"{outcome} in {time.monotonic() - started:.0f} s")
    sys.exit(not outcome.is_right)
