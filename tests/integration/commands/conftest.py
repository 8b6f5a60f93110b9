"""A transport and the keys of one queue, for tests that run commands on a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from tests.servers import Server
from toril.commands.add import JobToAdd, add_jobs
from toril.commands.command import Command
from toril.commands.worker import FetchReply, Pickup, Settlement, SettlementKind, finish_options, settle
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

T = TypeVar("T")
NOW = 1_700_000_000_000


@pytest.fixture
def keys(prefix: str) -> QueueKeys:
    return QueueKeys("paint", prefix, hash_tag=False)


@pytest.fixture
def transport(valkey: Server) -> Iterator[BlockingTransport]:
    with BlockingTransport(valkey.url) as transport:
        yield transport


class QueueDriver:
    """Adds, fetches and settles jobs of one queue, as producers and workers do."""

    def __init__(self, transport: BlockingTransport, keys: QueueKeys) -> None:
        self.transport = transport
        self.keys = keys
        self.now = NOW

    def run(self, command: Command[T]) -> T:
        return self.transport.run(command)

    def add(self, *ids: str, **options: Any) -> None:
        more = {
            name: options.pop(name)
            for name in ("parent", "parent_key", "waits_for_children")
            if name in options
        }
        jobs = [
            JobToAdd(name="draw", data=b'{"n":1}', options=options, timestamp=self.now, id=job_id, **more)
            for job_id in ids
        ]
        assert self.run(add_jobs(self.keys, jobs)) == list(ids)

    def take(self, count: int = 1, *, token: str = "t1") -> list[str]:
        return [job_id for job_id, _ in self.exchange(take=count, token=token).jobs]

    def exchange(self, *settlements: Settlement, take: int = 0, token: str = "t1") -> FetchReply:
        pickup = Pickup(token=token, lock_ms=30_000, worker="w1")
        return self.run(settle(self.keys, settlements, capacity=take, pickup=pickup, now_ms=self.now))

    def finish(self, job_id: str, *, failed: bool = False, token: str = "t1", keep: int = -1) -> FetchReply:
        return self.exchange(self.finished(job_id, failed=failed, token=token, keep=keep))

    def finished(self, job_id: str, *, failed: bool = False, token: str = "t1", keep: int = -1) -> Settlement:
        options = finish_options(
            pickup=Pickup(token=token, lock_ms=30_000), token=token, keep={"count": keep}, attempts=1
        )
        kind: SettlementKind = "failed" if failed else "completed"
        value = "why" if failed else '"done"'
        return Settlement(job_id=job_id, kind=kind, token=token, value=value, options=options)


@pytest.fixture
def driver(transport: BlockingTransport, keys: QueueKeys) -> QueueDriver:
    return QueueDriver(transport, keys)


@pytest.fixture
def raw_command(valkey: Server) -> Iterator[Callable[..., Any]]:
    """Runs any Redis command, to cause states that no command of toril causes."""
    with valkey.client() as client:
        yield client.execute_command
