"""Messages that others may write and that are hard to write again; errors that cannot be printed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.conformance.kinds import ListKind, ReliableListKind, StreamKind, client_of
from toril import Envelope, PermanentError, TransientError

KINDS = (ListKind, ReliableListKind, StreamKind)
ODD = {
    "half": b'{"text": "\\ud800"}',  # half of a character: no UTF-8 can hold it
    "endless": b'{"number": 1e999}',  # a number that no other JSON can hold
    "deep": b'{"a":' * 300 + b"1" + b"}" * 300,
    "large": b'{"number": %d}' % 10**40,
}


def message(name: str) -> bytes:
    fields = Envelope.new(name, {"n": 1}, job_id=f"job-{name}", max_attempts=3).as_dict()
    return json.dumps(fields).encode().replace(b'{"n": 1}', ODD[name])


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
async def kind(request: pytest.FixtureRequest, server_url: str, prefix: str) -> Any:
    async with request.param(server_url, prefix).opened() as opened:
        with client_of(server_url) as client:
            for name in ODD:
                if isinstance(opened, ListKind):
                    client.lpush(opened.queue.keys.queue, message(name))
                else:
                    client.xadd(opened.queue.keys.stream, {"envelope": message(name)})
        await opened.add("plain", {"n": 1})
        yield opened


async def run_all(kind: Any, handler: Any) -> None:
    async with asyncio.timeout(20), kind.worker(handler, concurrency=2) as worker:
        await worker.run_until_idle()


async def test_odd_messages_are_tried_again_or_buried_and_hold_nobody_up(kind: Any) -> None:
    ran: list[str] = []

    async def handle(envelope: Envelope) -> None:
        ran.append(envelope.name)
        if ran.count(envelope.name) < 3:
            raise TransientError("not yet")

    await run_all(kind, handle)
    (letter,) = [one async for one in kind.queue.dead_letters()]
    assert letter.dlq_reason == "validation_error"
    assert json.loads(letter.envelope.payload["raw"])["job_id"] == "job-endless"
    assert {name: ran.count(name) for name in (*ODD, "plain")} == {
        **dict.fromkeys((*ODD, "plain"), 3),
        "endless": 1,
    }
    assert await kind.unfinished() == 0


async def test_odd_messages_die_and_live_again(kind: Any) -> None:
    ran: list[str] = []

    async def refuse(envelope: Envelope) -> None:
        ran.append(envelope.name)
        raise PermanentError("never")

    await run_all(kind, refuse)
    assert await kind.queue.replay() == 5
    await run_all(kind, refuse)
    assert sorted(ran) == sorted((*ODD, "plain") * 2)
    assert len(await kind.failed_jobs()) == 5


async def test_an_error_that_cannot_be_printed_ends_its_own_job_only(kind: Any) -> None:
    class Silent(PermanentError):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def refuse(envelope: Envelope) -> None:
        if envelope.name == "plain":
            raise Silent

    await run_all(kind, refuse)
    assert [failed_job.reason for failed_job in await kind.failed_jobs()] == ["Silent"]
