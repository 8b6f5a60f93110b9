"""List queues: what lies where in Redis, the lock of each job, and reliable pickup."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.servers import Server
from tests.waiting import until
from toril import Envelope, InvalidOption, ListQueue, ListWorker, NewJob
from toril.backends.base import Delivery, FinishedJob, settle_and_fetch
from toril.backends.redis_list import ListBackend, ListConfig
from toril.commands import list_worker
from toril.commands.command import Command
from toril.commands.list_worker import ListPickup
from toril.errors import LockLost, PayloadTooLarge
from toril.protocol.keys import ListKeys
from toril.protocol.outcome import Completed, Failed, Requeued, Retry
from toril.transport import AsyncTransport, BlockingTransport

QUEUE = "jobs.generic"


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[ListQueue]:
    async with ListQueue(QUEUE, redis=server_url, prefix=prefix, env="prod") as queue:
        yield queue


@pytest.fixture
def base(prefix: str) -> str:
    return f"{prefix}:prod:queue:{QUEUE}"


@asynccontextmanager
async def manual_backend(
    server: Server, prefix: str, consumer: str = "manual", **terms: Any
) -> AsyncIterator[ListBackend]:
    """A worker that is played by hand; at the end it falls silent."""
    transport, blocking = AsyncTransport(server.url), BlockingTransport(server.url)
    terms = {"worker_id": "manual", "consumer": consumer, **terms}
    backend = ListBackend(ListKeys(QUEUE, prefix), transport, blocking, ListConfig(**terms))
    await backend.open()
    try:
        yield backend
    finally:
        await transport.close()
        blocking.close()


async def test_jobs_are_pushed_on_the_left_and_taken_from_the_right(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(3)])
    with server.client() as client:
        assert [json.loads(text)["payload"]["n"] for text in client.lrange(base, 0, -1)] == [2, 1, 0]
        # What any other client pushes by the record's convention is taken as well.
        client.lpush(base, Envelope.new("task", {"n": 3}).to_bytes())
    async with manual_backend(server, prefix) as backend:
        taken = (await settle_and_fetch(backend, [], 10)).deliveries
    assert [one.envelope.payload["n"] for one in taken] == [0, 1, 2, 3]


async def test_a_job_that_goes_back_while_jobs_are_counted_is_not_missed(
    queue: ListQueue, server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_many = AsyncTransport.run_many
    await queue.add("task", {})
    async with manual_backend(server, prefix, reliable=True) as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries

        async def goes_back_after_the_first_look(transport: AsyncTransport, commands: Any) -> Any:
            replies = await run_many(transport, commands)
            monkeypatch.undo()
            await settle_and_fetch(backend, [FinishedJob(delivery, Requeued())], 0)
            return replies

        monkeypatch.setattr(AsyncTransport, "run_many", goes_back_after_the_first_look)
        counts = await queue.counts()
    assert (counts.pending, counts.waiting) == (1, 1)


async def test_a_delayed_job_waits_in_the_sorted_set_until_it_is_due(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    await queue.add("task", {"n": 1}, run_at=at)
    with server.client() as client:
        ((_, due),) = client.zrange(f"{base}:scheduled", 0, -1, withscores=True)
        assert abs(due / 1000 - at.timestamp()) < 0.01
        async with manual_backend(server, prefix) as backend:
            taken = await settle_and_fetch(backend, [], 10)
            assert taken.deliveries == []
            assert taken.next_due_in is not None
            assert 3500 < taken.next_due_in <= 3600
            (text,) = client.zrange(f"{base}:scheduled", 0, -1)
            client.zadd(f"{base}:scheduled", {text: 1})  # its time has come
            assert len((await settle_and_fetch(backend, [], 10)).deliveries) == 1
        assert client.exists(f"{base}:scheduled") == 0


async def test_an_active_job_is_locked_by_a_random_token_and_released_when_done(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    sent = await queue.add("task")
    async with manual_backend(server, prefix) as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        lock = f"{base}:lock:{sent.job_id}"
        with server.client() as client:
            assert client.get(lock).decode() == delivery.fence
            assert 0 < client.pttl(lock) <= 30_000
            client.pexpire(lock, 1000)
            assert await asyncio.to_thread(backend.renew_locks, [delivery]) == []
            assert client.pttl(lock) > 1000
            await settle_and_fetch(backend, [FinishedJob(delivery, Completed())], 0)
            assert client.exists(lock) == 0


async def test_another_job_of_the_same_id_waits_until_the_active_one_is_done(
    queue: ListQueue, server: Server, prefix: str
) -> None:
    envelope = Envelope.new("task")
    await queue.add(envelope)
    await queue.add(envelope)
    async with manual_backend(server, prefix) as backend:
        (first,) = (await settle_and_fetch(backend, [], 10)).deliveries
        counts = await queue.counts()
        assert (counts.waiting, counts.scheduled) == (0, 1)
        await settle_and_fetch(backend, [FinishedJob(first, Completed())], 0)

        async def fetch() -> list[Delivery]:
            return list((await settle_and_fetch(backend, [], 10)).deliveries)

        taken = await until(fetch, "the second job is fetched")
        assert taken[0].id == first.id


async def test_a_lock_of_another_is_neither_released_nor_extended_and_refuses_the_outcome(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    sent = await queue.add("task")
    async with manual_backend(server, prefix) as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        with server.client() as client:
            client.set(f"{base}:lock:{sent.job_id}", "another", px=5000)
            assert await asyncio.to_thread(backend.renew_locks, [delivery]) == [delivery]
            (ack_error,) = (
                await settle_and_fetch(backend, [FinishedJob(delivery, Failed("x"))], 0)
            ).ack_errors
            assert isinstance(ack_error, LockLost)
            assert client.get(f"{base}:lock:{sent.job_id}") == b"another"


async def test_a_retry_whose_lock_ran_out_is_not_lost(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    sent = await queue.add("task")
    async with manual_backend(server, prefix) as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        with server.client() as client:
            client.delete(f"{base}:lock:{sent.job_id}")
        assert (
            await settle_and_fetch(backend, [FinishedJob(delivery, Retry(60, "later"))], 0)
        ).ack_errors == [None]
    ((envelope, _),) = await queue.scheduled()
    assert (envelope.job_id, envelope.attempts) == (sent.job_id, 1)


async def test_waiting_for_a_job_leaves_the_list_as_it_is(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(5)])
    with server.client() as client:
        before = client.lrange(base, 0, -1)
        async with manual_backend(server, prefix) as backend:
            for _ in range(7):
                await backend.wait(1)
        assert client.lrange(base, 0, -1) == before


async def test_a_reliable_worker_has_its_jobs_in_a_list_of_its_own(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(3)])
    async with manual_backend(server, prefix, "h:1:0:a", reliable=True) as backend:
        one, *others = (await settle_and_fetch(backend, [], 3)).deliveries
        with server.client() as client:
            assert client.llen(f"{base}:processing:h:1:0:a") == 3
        await settle_and_fetch(backend, [FinishedJob(one, Completed())], 0)
        counts = await queue.counts()
        assert (counts.waiting, counts.active) == (0, 2)
        await settle_and_fetch(backend, [FinishedJob(each, Completed()) for each in others], 0)
        await backend._deregister()
    with server.client() as client:
        assert client.keys(f"{base}:processing:*") == []
    assert await queue.pending() == 0


async def test_jobs_of_a_reliable_worker_that_was_not_seen_for_long_go_back_and_its_outcomes_are_refused(
    queue: ListQueue, server: Server, prefix: str
) -> None:
    await queue.add("task", {"n": 1})
    async with (
        manual_backend(server, prefix, "silent", reliable=True) as silent,
        manual_backend(server, prefix, "living", reliable=True) as living,
    ):
        (old,) = (await settle_and_fetch(silent, [], 1)).deliveries
        assert await living.sweep() == []
        later = await living.transport.now_ms() + 30_001
        recover = list_worker.recover(
            queue.keys, consumer="living", now_ms=later, silence_ms=30_000, limit=10
        )
        texts, more = await living.transport.run(recover)
        assert (len(texts), more) == (1, False)
        with server.client() as client:
            client.delete(queue.keys.lock(old.id))  # it ran out, as the worker did not renew it
        (new,) = (await settle_and_fetch(living, [], 1)).deliveries
        assert (old.attempts_made, new.attempts_made) == (0, 1)
        (ack_error,) = (await settle_and_fetch(silent, [FinishedJob(old, Failed("late"))], 0)).ack_errors
        assert isinstance(ack_error, LockLost)
        assert (await settle_and_fetch(living, [FinishedJob(new, Completed())], 0)).ack_errors == [None]
    assert [one async for one in queue.dead_letters()] == []
    assert (await queue.counts()).active == 0


async def test_one_sweep_puts_back_all_jobs_of_all_dead_workers(
    queue: ListQueue, server: Server, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(1400)])
    async with (
        manual_backend(server, prefix, "dead", reliable=True) as dead,
        manual_backend(server, prefix, "living", reliable=True) as living,
    ):
        assert (
            len((await settle_and_fetch(dead, [], 1300)).deliveries) == 1300
        )  # more than one call puts back
        with server.client() as client:
            consumers = queue.keys.toril("consumers")
            client.zadd(consumers, {"dead": 0} | {f"dead{n}": 0 for n in range(300)})
            for n in range(100):
                client.lmove(queue.keys.queue, queue.keys.processing(f"dead{200 + n}"), "RIGHT", "LEFT")
            assert len(await living.sweep()) == 1400
            assert client.zrange(consumers, 0, -1) == [b"living"]
        counts = await queue.counts()
        assert (counts.waiting, counts.active) == (1400, 0)


async def taken_without_reply(backend: ListBackend, queue: ListQueue) -> None:
    """A pickup that is done while its reply is lost; its worker dies before it comes back."""
    pickup = ListPickup(token="lost", lock_ms=1, consumer=backend._consumer)
    now_ms = await backend.transport.now_ms()
    fetch_reply = await backend.transport.run(
        list_worker.settle(queue.keys, [], capacity=10, pickup=pickup, now_ms=now_ms)
    )
    assert fetch_reply.jobs


async def recovered_by(backend: ListBackend, queue: ListQueue, *job_ids: str) -> None:
    """A lock's duration later, when the locks of these jobs have run out as well."""
    later = await backend.transport.now_ms() + 30_001
    recover = list_worker.recover(
        queue.keys, consumer=backend._consumer, now_ms=later, silence_ms=30_000, limit=10
    )
    assert (await backend.transport.run(recover))[0]
    for job_id in job_ids:
        await backend.transport.run(Command(("DEL", queue.keys.lock(job_id)), int))


async def test_a_delivery_that_was_lost_before_a_handler_ran_costs_no_attempt(
    queue: ListQueue, server: Server, prefix: str
) -> None:
    job = await queue.add("task", max_attempts=1)
    async with manual_backend(server, prefix, "living", reliable=True) as living:
        for n in range(3):
            async with manual_backend(server, prefix, f"unlucky-{n}", reliable=True) as unlucky:
                await taken_without_reply(unlucky, queue)
            await recovered_by(living, queue, job.job_id)
        (delivery,) = (await settle_and_fetch(living, [], 1)).deliveries
        assert delivery.attempts_made == 0
        assert (await settle_and_fetch(living, [FinishedJob(delivery, Completed())], 0)).ack_errors == [None]
        await living._deregister()
    with server.client() as client:
        assert client.keys(f"{queue.keys.base}:toril:unbegun:*") == []


async def test_a_delivery_that_reached_its_worker_costs_an_attempt_when_that_dies(
    queue: ListQueue, server: Server, prefix: str
) -> None:
    """One that was lost beside it costs none."""
    first = await queue.add("task", {"n": 1})
    async with manual_backend(server, prefix, "living", reliable=True) as living:
        async with manual_backend(server, prefix, "dying", reliable=True) as dying:
            await settle_and_fetch(dying, [], 1)
            second = await queue.add("task", {"n": 2})
            await taken_without_reply(dying, queue)
        await recovered_by(living, queue, first.job_id, second.job_id)
        deliveries = (await settle_and_fetch(living, [], 2)).deliveries
        assert [(one.id, one.attempts_made) for one in deliveries] == [
            (first.job_id, 1),
            (second.job_id, 0),
        ]


async def test_jobs_that_a_lost_reply_brought_to_a_reliable_worker_go_back(
    queue: ListQueue, server: Server, prefix: str
) -> None:
    await queue.add("task")
    async with manual_backend(server, prefix, reliable=True) as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        backend._deliveries.clear()  # as if the reply had never come
        await backend.sweep()
        assert (await queue.counts()).waiting == 0
        await backend.sweep()
        assert (await queue.counts()).waiting == 1
        (again,) = (await settle_and_fetch(backend, [], 1)).deliveries
        assert again.id == delivery.id


async def test_a_stop_at_any_moment_keeps_every_job(queue: ListQueue, server: Server, prefix: str) -> None:
    started: asyncio.Queue[str] = asyncio.Queue()

    async def handle(envelope: Envelope) -> None:
        started.put_nowait(envelope.job_id)
        await asyncio.Event().wait()

    sent = await queue.add_bulk([("task", {"n": n}) for n in range(20)])
    place: dict[str, Any] = {"redis": server.url, "prefix": prefix, "env": "prod"}
    async with asyncio.timeout(20):
        worker = ListWorker(QUEUE, handle, **place, concurrency=5)
        await worker.start()
        await started.get()
        await worker.stop(timeout=0)
    with server.client() as client:
        texts = client.lrange(queue.keys.queue, 0, -1)
    assert {Envelope.from_bytes(text).job_id for text in texts} == {one.job_id for one in sent}
    assert all(Envelope.from_bytes(text).attempts == 0 for text in texts)


async def test_what_cannot_be_a_job_is_refused_before_it_is_sent(queue: ListQueue) -> None:
    with pytest.raises(PayloadTooLarge):
        await queue.add("task", {"text": "x" * (10 * 1024 * 1024 + 1)})
    with pytest.raises(InvalidOption, match="task_type"):
        await queue.add("")
    with pytest.raises(InvalidOption, match="delay"):
        await queue.add("task", delay=-1)
    with pytest.raises(InvalidOption, match="run_at"):
        await queue.add("task", delay=1, run_at=datetime.now(UTC))
    with pytest.raises(InvalidOption, match="max_attempts"):
        await queue.add_bulk([("task", {}), ("task", {})], max_attempts=0)
    assert await queue.pending() == 0


async def test_obliterating_leaves_nothing_of_a_queue(queue: ListQueue, server: Server, prefix: str) -> None:
    await queue.add("task")
    await queue.add("task", delay=60)
    await queue.obliterate()
    counts = await queue.counts()
    assert (counts.waiting, counts.scheduled, counts.dead) == (0, 0, 0)


async def test_active_jobs_of_a_reliable_worker_are_removed_with_their_queue(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(3)])
    async with manual_backend(server, prefix, "h:1:0:a", reliable=True) as backend:
        (taken,) = (await settle_and_fetch(backend, [], 1)).deliveries
        await queue.obliterate()
        with server.client() as client:
            assert client.exists(base, f"{base}:processing:h:1:0:a", f"{base}:toril:consumers") == 0
        assert await queue.pending() == 0
        (ack_error,) = (await settle_and_fetch(backend, [FinishedJob(taken, Completed())], 0)).ack_errors
        assert isinstance(ack_error, LockLost)


@pytest.mark.parametrize("reliable", [False, True], ids=["plain", "reliable"])
async def test_a_lock_that_ran_out_while_its_worker_was_held_up_is_taken_again(
    queue: ListQueue, server: Server, prefix: str, reliable: bool
) -> None:
    sent = await queue.add("task")
    async with manual_backend(server, prefix, "h:1:0:a", reliable=reliable) as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        with server.client() as client:
            client.delete(queue.keys.lock(sent.job_id))
            assert await asyncio.to_thread(backend.renew_locks, [delivery]) == []
            assert client.get(queue.keys.lock(sent.job_id)).decode() == delivery.fence
            client.set(queue.keys.lock(sent.job_id), "another token")
            assert await asyncio.to_thread(backend.renew_locks, [delivery]) == [delivery]
            client.delete(queue.keys.lock(sent.job_id))
        await settle_and_fetch(backend, [FinishedJob(delivery, Completed())], 0)
        assert await asyncio.to_thread(backend.renew_locks, [delivery]) == [delivery]


async def test_a_reliable_job_that_went_to_another_is_not_locked_again(
    queue: ListQueue, server: Server, base: str, prefix: str
) -> None:
    sent = await queue.add("task")
    async with manual_backend(server, prefix, "h:1:0:a", reliable=True) as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        with server.client() as client:
            client.delete(queue.keys.lock(sent.job_id))
            client.rename(f"{base}:processing:h:1:0:a", base)  # as a sweep of another worker would
            assert await asyncio.to_thread(backend.renew_locks, [delivery]) == [delivery]
            assert client.exists(queue.keys.lock(sent.job_id)) == 0


@pytest.mark.parametrize("foreign", [NewJob("task", {}), ("task",), {"task": 1}, 7], ids=repr)
async def test_what_is_neither_a_pair_nor_an_envelope_is_refused_before_anything_is_sent(
    queue: ListQueue, foreign: Any
) -> None:
    with pytest.raises(InvalidOption, match=r"jobs: holds a .*pairs or envelopes"):
        await queue.add_bulk([("task", {}), foreign])
    assert (await queue.counts()).waiting == 0
