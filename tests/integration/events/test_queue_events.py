"""Hearing what happens in a queue: typed, in order, resumable, without silent gaps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.integration.manual_worker import ManualWorker
from tests.servers import Server, ValkeyCluster
from tests.waiting import until
from toril.errors import Closed, InvalidOption, OptionWarning
from toril.events import Gap, QueueEvents
from toril.events import _stream as stream_module
from toril.producer import Queue
from toril.protocol.event import Event
from toril.transport import ConnectionPolicy


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("emails", redis=server_url, prefix=prefix) as opened:
        yield opened


def events_of(queue: Queue, server: Server, **options: Any) -> QueueEvents:
    return QueueEvents("emails", redis=server.url, prefix=queue.keys.prefix, **options)


async def read(events: QueueEvents, count: int, last_id: str | None = None) -> list[Event | Gap]:
    """The next `count` events of a reading of its own."""
    found: list[Event | Gap] = []
    iterator = events.follow(last_id)
    async with asyncio.timeout(20):
        async for event in iterator:
            found.append(event)
            if len(found) == count:
                break
    await iterator.aclose()
    return found


async def test_the_events_of_a_job_come_in_order(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events, ManualWorker(server.url, queue.keys) as manual_worker:
        job = await queue.add("send", {"n": 1})
        taken = await manual_worker.take()
        await taken.update_progress(50)
        await manual_worker.complete(taken, {"ok": True})
        found = await read(events, 5)
    assert [event.type for event in found] == ["added", "waiting", "active", "progress", "completed"]
    assert {event.job_id for event in found} == {job.id}
    added, _, _, progress, completed = found
    assert isinstance(added, Event)
    assert isinstance(progress, Event)
    assert isinstance(completed, Event)
    assert (added.name, progress.progress, completed.returnvalue) == ("send", 50, {"ok": True})
    assert completed.time >= added.time


async def test_events_from_the_moment_of_entering_count_even_if_iteration_begins_later(
    queue: Queue, server: Server
) -> None:
    await queue.add("before")
    async with events_of(queue, server) as events:
        await queue.add("after")
        (first,) = await read(events, 1)
    assert isinstance(first, Event)
    assert (first.type, first.name) == ("added", "after")


async def test_a_reading_waits_for_what_comes(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        reading = asyncio.create_task(read(events, 2))
        await until_blocked(server)
        await queue.add("x")
        assert [event.type for event in await reading] == ["added", "waiting"]


async def test_reading_resumes_after_an_id(queue: Queue, server: Server) -> None:
    jobs = await queue.add_bulk([("x", n) for n in range(3)])
    async with events_of(queue, server, last_id="0") as events:
        first = await read(events, 2)
        rest = await read(events, 4, first[-1].id)
    assert [event.job_id for event in first] == [jobs[0].id] * 2
    assert [event.job_id for event in rest] == [job.id for job in jobs[1:] for _ in range(2)]


async def test_every_iteration_is_a_reading_of_its_own(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        await queue.add("x")
        one, other = await asyncio.gather(read(events, 2), read(events, 2))
    assert one == other


async def test_more_events_than_one_page_arrive_complete(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        jobs = await queue.add_bulk([("x", n) for n in range(700)])
        found = await read(events, 1400)
    assert [event.job_id for event in found if event.type == "added"] == [job.id for job in jobs]
    assert not any(isinstance(event, Gap) for event in found)


async def test_a_retry_is_derived_from_the_events_of_upstream(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events, ManualWorker(server.url, queue.keys) as manual_worker:
        await queue.add("x")
        await manual_worker.take()
        with server.client() as client:  # what a retry with a delay leaves in the stream
            client.xadd(queue.keys.events, {"event": "delayed", "jobId": "1", "delay": "1700000000000"})
            client.xadd(queue.keys.events, {"event": "active", "jobId": "2", "prev": "waiting"})
            client.xadd(queue.keys.events, {"event": "waiting", "jobId": "2", "prev": "active"})
        found = await read(events, 7)
    assert [event.type for event in found] == [
        "added",
        "waiting",
        "active",
        "delayed",
        "active",
        "waiting",
        "retry",
    ]


async def test_callbacks_hear_their_type_and_an_error_in_one_stops_nobody(
    queue: Queue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, str | None]] = []
    done = asyncio.Event()

    async def remember(event: Event) -> None:
        heard.append((event.type, event.job_id))

    def fail(event: Event) -> None:
        raise RuntimeError("this callback is broken")

    async with events_of(queue, server) as events:
        events.on("waiting", fail)
        events.on("waiting", remember)
        events.on("*", lambda event: done.set() if len(heard) == 2 else None)
        first, second = await queue.add("x"), await queue.add("y")
        async with asyncio.timeout(20):
            await done.wait()
        assert heard == [("waiting", first.id), ("waiting", second.id)]
        assert events.last_id != "$"
        events.off("waiting", remember)
    assert "a callback for waiting events failed" in caplog.text


async def test_callbacks_end_with_a_line_in_the_log_when_events_may_not_be_read(
    queue: Queue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with events_of(queue, server) as events:
        with server.client() as client:
            client.delete(queue.keys.events)
            client.set(queue.keys.events, "no stream")
        events.on("added", print)
        await until(lambda: "cannot be read any more" in caplog.text, "the line in the log")
    assert caplog.text.count("cannot be read any more") == 1


async def test_custom_events_are_received_by_their_name(queue: Queue, server: Server) -> None:
    heard: list[Event] = []
    done = asyncio.Event()

    def remember(event: Event) -> None:
        heard.append(event)
        done.set()

    async with events_of(queue, server) as events:
        events.on("example:event", remember)
        await queue.add("x")
        with server.client() as client:  # as Node's QueueEventsProducer writes it
            client.xadd(queue.keys.events, {"event": "example:event", "jobId": "7", "custom": "value"})
        await asyncio.wait_for(done.wait(), 20)
        events.off("example:event", remember)
    (event,) = heard
    assert (event.type, event.job_id, event.fields) == ("example:event", "7", {"custom": "value"})
    assert not event.is_known


@pytest.mark.parametrize("name", ["", 5, None])
async def test_what_is_no_name_of_an_event_is_refused(queue: Queue, server: Server, name: Any) -> None:
    events = events_of(queue, server)
    with pytest.raises(InvalidOption):
        events.on(name, print)
    with pytest.warns(OptionWarning, match="did you mean 'completed'"):
        events.on("compleated", print)
    await events.close()


async def test_a_closed_reader_stays_closed(queue: Queue, server: Server) -> None:
    events = events_of(queue, server)
    async with events:
        pass
    with pytest.raises(Closed):
        await events.open()


async def test_closing_ends_iterations_that_wait(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        iterating = asyncio.create_task(_all(events))
        await until_blocked(server)
    async with asyncio.timeout(5):
        assert await iterating == []


async def _all(events: QueueEvents) -> list[Event | Gap]:
    return [event async for event in events]


# --- gaps -----------------------------------------------------------------------------------------------------------


async def test_events_that_were_trimmed_before_they_were_read_are_counted(
    queue: Queue, server: Server
) -> None:
    async with events_of(queue, server) as events:
        await queue.add_bulk([("x", n) for n in range(50)])  # a hundred events
        with server.client() as client:
            client.xtrim(queue.keys.events, maxlen=10, approximate=False)
        gap, *rest = await read(events, 11)
    assert isinstance(gap, Gap)
    assert (gap.type, gap.missed, gap.id) == ("gap", 90, rest[0].id)
    assert len(rest) == 10


async def test_trimming_what_was_read_already_is_no_gap(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        iterator = events.follow()
        async with asyncio.timeout(20):
            await queue.add("x")
            seen = [await anext(iterator), await anext(iterator)]
            with server.client() as client:
                client.xtrim(queue.keys.events, maxlen=0, approximate=False)
            await queue.add("y")
            seen += [await anext(iterator), await anext(iterator)]
    assert [event.type for event in seen] == ["added", "waiting", "added", "waiting"]


async def test_a_reading_that_falls_behind_hears_how_much_it_missed(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        iterator = events.follow()
        async with asyncio.timeout(20):
            await queue.add("x")
            await anext(iterator)
            await anext(iterator)
            await queue.add_bulk([("y", n) for n in range(20)])
            with server.client() as client:
                client.xtrim(queue.keys.events, maxlen=4, approximate=False)
            gap = await anext(iterator)
    assert isinstance(gap, Gap)
    assert gap.missed == 36


async def test_what_is_trimmed_while_entries_are_handed_over_is_counted_before_a_long_silence(
    queue: Queue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = stream_module.EventStream.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "block", 600)
    async with events_of(queue, server) as events:
        iterator = events.follow()
        async with asyncio.timeout(20):
            reading = asyncio.create_task(anext(iterator))
            await until_blocked(server)
            with server.client() as client, client.pipeline(transaction=True) as together:
                for n in range(50):
                    together.xadd(queue.keys.events, {"event": "added", "jobId": str(n), "name": "x"})
                together.xtrim(queue.keys.events, maxlen=4, approximate=False)
                together.execute()
            *found, gap = [await reading, *[await anext(iterator) for _ in range(4)]]
    assert [event.job_id for event in found] == ["46", "47", "48", "49"]
    assert isinstance(gap, Gap)
    assert gap.missed == 46


async def test_a_stream_that_was_deleted_and_grew_again_is_one_gap(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        iterator = events.follow()
        async with asyncio.timeout(20):
            await queue.add_bulk([("x", n) for n in range(400)])
            for _ in range(800):
                await anext(iterator)
            reading = asyncio.create_task(anext(iterator))
            await until_blocked(server)
            with server.client() as client:
                client.delete(queue.keys.events)
            await queue.add("y")
            found = [await reading, await anext(iterator), await anext(iterator)]
            await queue.add_bulk([("z", n) for n in range(300)])
            found += [await anext(iterator) for _ in range(600)]
            await queue.add("last")
            found += [await anext(iterator), await anext(iterator)]
    gaps = [event for event in found if isinstance(event, Gap)]
    assert [gap.missed for gap in gaps] == [None]


async def test_a_stream_that_was_emptied_before_it_was_read_is_a_gap(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        await queue.add("x")
        with server.client() as client:
            client.xtrim(queue.keys.events, maxlen=0, approximate=False)
        iterator = events.follow()
        async with asyncio.timeout(20):
            gap = await anext(iterator)
            await queue.add("y")
            event = await anext(iterator)
    assert isinstance(gap, Gap)
    assert isinstance(event, Event)
    assert event.name == "y"


async def test_a_reading_that_keeps_up_waits_again_without_a_look(
    queue: Queue, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "PROMPT_SECONDS", 60)
    monkeypatch.setattr(stream_module, "COUNT_SECONDS", 60)
    monkeypatch.setattr(stream_module, "SETTLE_SECONDS", 60)
    async with events_of(queue, server) as events:
        iterator = events.follow()
        async with asyncio.timeout(20):
            for name in "xyz":
                reading = asyncio.create_task(anext(iterator))
                await until_blocked(server)
                if name == "x":
                    before = scripts_run(server)
                await queue.add(name)
                await reading
                await anext(iterator)
    assert scripts_run(server) - before == 3  # the adds


async def test_resuming_at_an_id_that_still_exists_counts_exactly(queue: Queue, server: Server) -> None:
    await queue.add_bulk([("x", n) for n in range(300)])
    async with events_of(queue, server, last_id="0") as events:
        first = await read(events, 1)
        iterator = events.follow(first[0].id)
        async with asyncio.timeout(20):
            await anext(iterator)
            for _ in range(stream_module.PAGE - 1):  # to the end of the page it has read
                await anext(iterator)
            with server.client() as client:
                client.xtrim(queue.keys.events, maxlen=9, approximate=False)
            gap = await anext(iterator)
    assert isinstance(gap, Gap)
    assert gap.missed == 600 - 1 - stream_module.PAGE - 9


async def test_resuming_at_an_id_that_is_gone_says_that_nobody_knows(queue: Queue, server: Server) -> None:
    await queue.add("x")
    async with events_of(queue, server, last_id="1-0") as events:
        gap, event = await read(events, 2)
    assert isinstance(gap, Gap)
    assert gap.missed is None
    assert event.type == "added"


async def test_a_deleted_stream_is_a_gap_too(queue: Queue, server: Server) -> None:
    async with events_of(queue, server) as events:
        iterator = events.follow()
        async with asyncio.timeout(20):
            await queue.add_bulk([("x", n) for n in range(5)])
            for _ in range(10):
                await anext(iterator)
            with server.client() as client:
                client.delete(queue.keys.events)
            await queue.add("y")
            gap, event = await anext(iterator), await anext(iterator)
    assert isinstance(gap, Gap)
    assert gap.missed is None
    assert isinstance(event, Event)
    assert (event.type, event.name) == ("added", "y")


# --- trouble --------------------------------------------------------------------------------------------------------


async def test_reading_goes_on_after_the_connection_was_lost(
    queue: Queue, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with events_of(queue, server) as events:
        reading = asyncio.create_task(read(events, 4))
        await until_blocked(server)
        await queue.add("x")
        await until_blocked(server)
        with server.client() as client:
            for entry in client.client_list():
                if entry["cmd"] == "xread":
                    client.client_kill_filter(_id=entry["id"])
        await queue.add("y")
        found = await reading
    assert [event.type for event in found] == ["added", "waiting", "added", "waiting"]


async def test_reading_goes_on_after_the_server_was_restarted(
    start_valkey: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_valkey(appendonly="yes")
    async with Queue("emails", redis=server.url, prefix=prefix) as queue, events_of(queue, server) as events:
        reading = asyncio.create_task(read(events, 4))
        await until_blocked(server)
        await queue.add("x")
        server.stop()
        server.start()
        await queue.add("y")
        found = await reading
    assert [event.type for event in found] == ["added", "waiting", "added", "waiting"]


async def test_a_long_outage_is_sat_out_with_one_line_for_each_attempt(
    start_valkey: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_valkey(appendonly="yes")
    policy = ConnectionPolicy(connect_timeout=0.3, reconnect_delay=0.05, call_attempts=1)
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        await queue.add("x")
        async with events_of(queue, server, last_id="0", policy=policy) as events:
            reading = asyncio.create_task(read(events, 4))
            await until_blocked(server)
            server.stop()
            await until(lambda: "next attempt in" in caplog.text, "an attempt failed")
            server.start()
            await queue.add("y")
            found = await reading
    assert [event.type for event in found] == ["added", "waiting", "added", "waiting"]
    lines = [record for record in caplog.records if "next attempt" in record.message]
    assert 1 <= len(lines) <= 20


async def test_closing_during_an_outage_does_not_wait_for_its_end(
    start_valkey: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_valkey()
    policy = ConnectionPolicy(connect_timeout=0.3, reconnect_delay=20, call_attempts=1)
    async with Queue("emails", redis=server.url, prefix=prefix, policy=policy) as queue:
        async with events_of(queue, server, policy=policy) as events:
            reading = asyncio.create_task(_all(events))
            await until_blocked(server)
            server.stop()
            await until(lambda: "next attempt in" in caplog.text, "an attempt failed")
        async with asyncio.timeout(10):
            assert await reading == []


async def test_events_are_read_on_a_cluster(cluster: ValkeyCluster, prefix: str) -> None:
    async with (
        Queue("emails", redis=cluster.url, prefix=prefix) as queue,
        QueueEvents("emails", redis=cluster.url, prefix=prefix) as events,
    ):
        reading = asyncio.create_task(read(events, 2))
        job = await queue.add("x")
        assert [event.job_id for event in await reading] == [job.id, job.id]


def scripts_run(server: Server) -> int:
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


async def until_blocked(server: Server) -> None:
    """Until somebody waits for events."""
    with server.client() as client:
        while not any(entry["cmd"] == "xread" and "b" in entry["flags"] for entry in client.client_list()):
            await asyncio.sleep(0.01)
