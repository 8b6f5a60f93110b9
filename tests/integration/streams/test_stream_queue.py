"""Stream queues: what lies where in Redis, and what happens to entries whose consumers fall silent."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.servers import Server
from tests.waiting import until
from toril import Envelope, InvalidOption, StreamQueue, StreamWorker, TransientError
from toril.backends.base import FinishedJob, settle_and_fetch
from toril.backends.redis_stream import StreamBackend, StreamConfig
from toril.commands import envelopes, stream_worker
from toril.commands.envelopes import EnvelopeToAdd
from toril.errors import LockLost
from toril.protocol.keys import StreamKeys
from toril.protocol.outcome import Completed, Failed
from toril.transport import AsyncTransport, BlockingTransport

QUEUE = "jobs.browser"


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[StreamQueue]:
    async with StreamQueue(QUEUE, redis=server_url, prefix=prefix, env="prod") as queue:
        yield queue


@pytest.fixture
def base(prefix: str) -> str:
    return f"{prefix}:prod:stream:{QUEUE}"


def worker(server: Server, prefix: str, handler: Any, **options: Any) -> StreamWorker:
    quick = {
        "claim_idle": 1.0,
        "lock_duration": 1.0,
        "heartbeat_interval": 0.2,
        "stalled_check_interval": 0.2,
    }
    return StreamWorker(QUEUE, handler, redis=server.url, prefix=prefix, env="prod", **{**quick, **options})


@asynccontextmanager
async def manual_backend(
    server: Server, prefix: str, consumer: str = "manual:1:0", **terms: Any
) -> AsyncIterator[StreamBackend]:
    """A consumer that is played by hand; at the end it falls silent."""
    transport, blocking = AsyncTransport(server.url), BlockingTransport(server.url)
    how = {
        "worker_id": "manual",
        "consumer": consumer,
        "concurrency": 10,
        "claim_idle_ms": 0,
        "own_idle_ms": 0,
    }
    backend = StreamBackend(StreamKeys(QUEUE, prefix), transport, blocking, StreamConfig(**{**how, **terms}))
    await backend.open()
    try:
        yield backend
    finally:
        await transport.close()
        blocking.close()


async def test_a_job_is_an_entry_with_one_field_under_the_names_of_the_record(
    queue: StreamQueue, server: Server, base: str
) -> None:
    sent = await queue.add("navigate_extract", {"url": "https://example.com"}, user_id="u1", source="api")
    with server.client() as client:
        ((_, fields),) = client.xrange(base)
    assert list(fields) == [b"envelope"]
    envelope = json.loads(fields[b"envelope"])
    assert list(envelope) == ["job_id", "task_type", "attempts", "max_attempts", "payload", "meta"]
    assert envelope["job_id"] == sent.job_id
    assert (envelope["attempts"], envelope["max_attempts"]) == (0, 5)
    assert envelope["meta"]["source"] == "api"


async def test_workers_are_consumers_of_the_records_group_and_leave_it_when_they_stop(
    queue: StreamQueue, server: Server, base: str, prefix: str
) -> None:
    running = asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        running.set()

    await queue.add("task")
    async with worker(server, prefix, handle) as one:
        await running.wait()
        with server.client() as client:
            (consumer,) = client.xinfo_consumers(base, "browser-workers")
        host, pid, index = consumer["name"].decode().rsplit(":", 2)
        assert (host, pid) == (socket.gethostname(), str(os.getpid()))
        assert index.isdigit()
        assert one.consumer == consumer["name"].decode()
    with server.client() as client:
        assert client.xinfo_consumers(base, "browser-workers") == []


async def test_a_retry_waits_in_the_sorted_set_with_one_attempt_more(
    queue: StreamQueue, server: Server, base: str, prefix: str
) -> None:
    failed = asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        raise TransientError("the page did not load", retry_after=60)

    await queue.add("task", {"n": 1})
    async with worker(server, prefix, handle) as one:
        one.on("retrying", lambda *_: failed.set())
        await failed.wait()
    ((envelope, due),) = await queue.scheduled()
    assert (envelope.attempts, envelope.payload) == (1, {"n": 1})
    assert 55 < (due - envelope.meta.enqueued_at).total_seconds() < 70
    figures = await queue.figures()
    assert (figures.pending, figures.waiting, figures.scheduled) == (0, 0, 1)


async def test_lag_and_pending_are_counted_apart(queue: StreamQueue, server: Server, prefix: str) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(10)])
    await queue.add("task", delay=60)
    async with manual_backend(server, prefix) as backend:
        taken = await settle_and_fetch(backend, [], 4)
        await settle_and_fetch(backend, [FinishedJob(taken.deliveries[0], Completed())], 0)
        figures = await queue.figures()
    assert (figures.waiting, figures.pending, figures.scheduled, figures.consumers) == (6, 3, 1, 1)
    counts = await queue.counts()
    assert (counts.waiting, counts.active, counts.scheduled, counts.dead) == (6, 3, 1, 0)
    assert await queue.pending() == 10


def has_renewed(renewer: Any, count: int) -> bool:
    return bool(renewer.renewed >= count)


async def test_a_job_that_is_renewed_is_not_claimed(queue: StreamQueue, server: Server, prefix: str) -> None:
    runs = []
    other_swept = asyncio.Event()

    async def handle(envelope: Envelope) -> None:
        runs.append(envelope.job_id)
        await other_swept.wait()

    await queue.add("task")
    async with (
        asyncio.timeout(20),
        worker(server, prefix, handle) as busy,
        manual_backend(server, prefix, "other:1:0") as other,
    ):
        other._config = StreamConfig(worker_id="o", consumer="other:1:0", concurrency=1, claim_idle_ms=1000)
        renewer = busy._lifecycle.runtime.lock_renewer  # type: ignore[union-attr]
        for count in range(1, 10):  # nine heartbeats are longer than an entry may be idle, which they prevent
            await until(partial(has_renewed, renewer, count), f"heartbeat {count}")
            assert await other.sweep() == []
        other_swept.set()
    assert len(runs) == 1
    assert await queue.pending() == 0


async def test_the_outcome_of_a_consumer_whose_entry_was_claimed_changes_nothing(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    await queue.add("task")
    async with (
        manual_backend(server, prefix, "late:1:0") as late,
        manual_backend(server, prefix, "new:1:0") as new,
    ):
        (old,) = (await settle_and_fetch(late, [], 1)).deliveries
        assert len(await new.sweep()) == 1
        (current,) = (await settle_and_fetch(new, [], 1)).deliveries
        assert (old.attempts_made, current.attempts_made) == (0, 1)
        (ack_error,) = (await settle_and_fetch(late, [FinishedJob(old, Failed("late"))], 0)).ack_errors
        assert isinstance(ack_error, LockLost)
        assert await asyncio.to_thread(late.renew_locks, [old]) == [old]
        assert (await settle_and_fetch(new, [FinishedJob(current, Completed())], 0)).ack_errors == [None]
    assert await queue.pending() == 0
    assert [one async for one in queue.dead_letters()] == []


async def test_a_job_that_takes_every_worker_down_becomes_a_dead_letter(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    sent = await queue.add("task", max_attempts=2)
    deliveries = 0
    for n in range(6):
        async with manual_backend(server, prefix, f"victim:{n}:0") as victim:
            await victim.sweep()
            taken = (await settle_and_fetch(victim, [], 1)).deliveries
            deliveries += len(taken)
            await settle_and_fetch(victim, [], 0)
    assert deliveries == 3  # its attempts, and one more
    (letter,) = [one async for one in queue.dead_letters()]
    assert (letter.job_id, letter.dlq_reason, letter.last_error) == (
        sent.job_id,
        "max_attempts_exceeded",
        "stalled",
    )
    assert await queue.pending() == 0


async def test_entries_that_a_lost_reply_brought_are_taken_up_again(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(3)])
    async with manual_backend(server, prefix, "same:1:0") as before:
        assert len((await settle_and_fetch(before, [], 3)).deliveries) == 3
    async with manual_backend(server, prefix, "same:1:0", claim_idle_ms=3_600_000) as after:
        assert len(await after.sweep()) == 3
        assert len((await settle_and_fetch(after, [], 3)).deliveries) == 3


async def test_finished_entries_are_trimmed_and_pending_ones_never(
    queue: StreamQueue, server: Server, base: str, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(1000)])
    async with manual_backend(server, prefix, keep=100) as backend:
        slow, *rest = (await settle_and_fetch(backend, [], 200)).deliveries
        while rest:
            rest = list(
                (
                    await settle_and_fetch(backend, [FinishedJob(one, Completed()) for one in rest], 200)
                ).deliveries
            )
        with server.client() as client:
            assert client.xlen(base) == 1000  # the slow one is the oldest
        await settle_and_fetch(backend, [FinishedJob(slow, Completed())], 0)
        for n in range(20):
            await queue.add("task", {"n": n})
            (one,) = (await settle_and_fetch(backend, [], 1)).deliveries
            await settle_and_fetch(backend, [FinishedJob(one, Completed())], 0)
    with server.client() as client:
        # Redis frees whole nodes of about a hundred entries.
        assert 100 <= client.xlen(base) <= 300
    assert await queue.pending() == 0


async def test_entries_that_another_group_has_not_read_are_not_trimmed(
    queue: StreamQueue, server: Server, base: str, prefix: str
) -> None:
    with server.client() as client:
        client.xgroup_create(base, "auditors", id="0", mkstream=True)
    await queue.add_bulk([("task", {"n": n}) for n in range(500)])
    async with manual_backend(server, prefix, keep=0) as backend:
        taken = list((await settle_and_fetch(backend, [], 250)).deliveries)
        while taken:
            taken = list(
                (
                    await settle_and_fetch(backend, [FinishedJob(one, Completed()) for one in taken], 250)
                ).deliveries
            )
    with server.client() as client:
        assert client.xlen(base) == 500


async def test_an_entry_that_was_trimmed_while_pending_raises_an_alarm(
    queue: StreamQueue, server: Server, base: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    await queue.add("task")
    async with manual_backend(server, prefix, "dead:1:0") as dead:
        assert (await settle_and_fetch(dead, [], 1)).deliveries
    with server.client() as client:
        client.xtrim(base, maxlen=0, approximate=False)
    async with manual_backend(server, prefix, "living:1:0") as living:
        with caplog.at_level(logging.ERROR, "toril.worker"):
            assert await living.sweep() == []
    assert "trimmed while it was pending" in caplog.text
    assert (await queue.totals())["trimmed"] == 1
    assert (await queue.figures()).pending == 0


async def test_silent_consumers_are_removed_only_when_nothing_is_pending(
    queue: StreamQueue, server: Server, base: str, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(2)])
    async with (
        manual_backend(server, prefix, "holds:1:0") as holds,
        manual_backend(server, prefix, "empty:1:0") as empty,
    ):
        assert (await settle_and_fetch(holds, [], 1)).deliveries
        (one,) = (await settle_and_fetch(empty, [], 1)).deliveries
        await settle_and_fetch(empty, [FinishedJob(one, Completed())], 0)
    removed: list[str] = []
    async with AsyncTransport(server.url) as transport, asyncio.timeout(5):
        while not removed:  # both have been idle for some milliseconds by then
            removed = await transport.run(stream_worker.remove_consumers(queue.keys, idle_ms=1))
    assert removed == ["empty:1:0"]
    with server.client() as client:
        (left,) = client.xinfo_consumers(base, "browser-workers")
    assert left["name"] == b"holds:1:0"


@pytest.mark.any_key
async def test_a_worker_goes_on_after_the_stream_and_its_group_were_deleted(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    seen: asyncio.Queue[int] = asyncio.Queue()

    async def handle(envelope: Envelope) -> None:
        seen.put_nowait(envelope.payload["n"])

    async with asyncio.timeout(20), worker(server, prefix, handle):
        await queue.add("task", {"n": 1})
        assert await seen.get() == 1
        with server.client() as client:
            client.flushall()
        await queue.add("task", {"n": 2})
        assert await seen.get() == 2


async def test_two_entries_of_one_job_id_both_run(queue: StreamQueue, server: Server, prefix: str) -> None:
    seen = []

    async def handle(envelope: Envelope) -> None:
        seen.append(envelope.job_id)

    envelope = Envelope.new("task")
    await queue.add(envelope)
    await queue.add(envelope)
    async with asyncio.timeout(20), worker(server, prefix, handle, concurrency=10) as one:
        await one.run_until_idle()
    assert seen == [envelope.job_id] * 2
    assert await queue.pending() == 0


async def test_an_add_that_is_sent_again_after_a_lost_reply_adds_nothing(
    queue: StreamQueue, server: Server
) -> None:
    batch = [EnvelopeToAdd(Envelope.new("task", {"n": n}).to_bytes()) for n in range(3)]
    async with AsyncTransport(server.url) as transport:
        call = envelopes.add_envelopes(queue.keys, batch, producer="p", sequence=1)
        assert [await transport.run(call), await transport.run(call)] == [3, 0]
    assert await queue.pending() == 3


async def test_a_stream_whose_keys_share_a_tag_is_for_clusters(prefix: str) -> None:
    keys = StreamKeys(QUEUE, prefix, hash_tag=True)
    assert keys.stream == f"{prefix}:prod:stream:{{{QUEUE}}}"
    assert keys.dlq == f"{prefix}:prod:stream:{{{QUEUE}}}:dlq"


async def test_an_idle_time_below_two_heartbeats_is_refused() -> None:
    with pytest.raises(InvalidOption, match="claim_idle"):
        StreamWorker(QUEUE, lambda envelope: None, claim_idle=5.0)


async def test_a_worker_that_asks_for_nothing_claims_nothing(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    await queue.add("task")
    async with manual_backend(server, prefix, "dead:1:0") as dead:
        assert (await settle_and_fetch(dead, [], 1)).deliveries
    async with manual_backend(server, prefix, "paused:1:0") as paused:
        await settle_and_fetch(paused, [], 0)
        paused._wants_jobs = False
        assert await paused.sweep() == []
        assert (await queue.figures()).consumers == 1
        assert len((await settle_and_fetch(paused, [], 1)).deliveries) == 1
        assert len(await paused.sweep()) == 1  # reported by the next sweep


ENTRIES = 60


async def taken_by(server: Server, prefix: str, consumer: str, count: int) -> None:
    """A consumer takes entries, and is not seen for an hour."""
    async with manual_backend(server, prefix, consumer) as dead:
        assert len((await settle_and_fetch(dead, [], count)).deliveries) == count
    keys = StreamKeys(QUEUE, prefix)
    with server.client() as client:
        ids = [
            one["message_id"]
            for one in client.xpending_range(keys.stream, keys.consumer_group, "-", "+", 10_000, consumer)
        ]
        client.xclaim(keys.stream, keys.consumer_group, consumer, 0, ids, idle=3_600_000, justid=True)


@pytest.mark.parametrize("concurrency", [1, 7])
async def test_one_sweep_is_enough_to_recover_all_that_a_dead_consumer_had(
    queue: StreamQueue, server: Server, prefix: str, concurrency: int
) -> None:
    seen: list[int] = []

    async def handle(envelope: Envelope) -> None:
        seen.append(envelope.payload["n"])

    await queue.add_bulk([("task", {"n": n}) for n in range(ENTRIES)])
    await taken_by(server, prefix, "dead:1:0", ENTRIES)
    quick = {"concurrency": concurrency, "stalled_check_interval": 3600}
    async with asyncio.timeout(30), worker(server, prefix, handle, **quick) as running:
        await running.run_until_idle()
        assert running._lifecycle._runtime.stalled_sweeper.done == 1
    assert sorted(seen) == list(range(ENTRIES))


async def test_a_worker_that_is_always_busy_recovers_what_a_dead_consumer_had(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    await queue.add_bulk([("old", {"n": n}) for n in range(3)])
    await taken_by(server, prefix, "dead:1:0", 3)
    await queue.add_bulk([("new", {"n": n}) for n in range(10)])
    async with manual_backend(server, prefix, "busy:1:0", concurrency=2, claim_idle_ms=60_000) as busy:
        held = list((await settle_and_fetch(busy, [], 2)).deliveries)
        assert await busy.sweep() == []  # both places are taken
        names = []
        while held:
            names += [one.name for one in held]
            held = list(
                (await settle_and_fetch(busy, [FinishedJob(one, Completed()) for one in held], 2)).deliveries
            )
        assert names[:5] == ["new", "new", "old", "old", "old"]
        assert len(names) == 13
        assert len(await busy.sweep()) == 3


async def test_entries_of_a_dead_consumer_are_found_behind_many_of_a_living_one(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    await queue.add_bulk([("alive", {"n": n}) for n in range(3000)])
    async with manual_backend(server, prefix, "living:1:0", concurrency=3000) as living:
        assert len((await settle_and_fetch(living, [], 3000)).deliveries) == 3000
    await queue.add("dead")
    await taken_by(server, prefix, "dead:1:0", 1)
    async with manual_backend(server, prefix, "new:1:0", concurrency=1, claim_idle_ms=600_000) as new:
        assert len(await new.sweep()) == 1
        (delivery,) = (await settle_and_fetch(new, [], 1)).deliveries
        assert delivery.name == "dead"


async def test_entries_of_an_earlier_process_of_the_same_name_are_recovered_as_capacity_frees(
    queue: StreamQueue, server: Server, prefix: str
) -> None:
    await queue.add_bulk([("task", {"n": n}) for n in range(5)])
    await taken_by(server, prefix, "same:1:0", 5)
    async with manual_backend(
        server, prefix, "same:1:0", concurrency=1, claim_idle_ms=3_600_000_000
    ) as after:
        assert len(await after.sweep()) == 1
        done = 0
        while held := (await settle_and_fetch(after, [], 1)).deliveries:
            await settle_and_fetch(after, [FinishedJob(one, Completed()) for one in held], 0)
            done += 1
        assert done == 5
    assert await queue.pending() == 0
