"""Adding jobs: what is stored, what is refused, what travels together."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from tests.integration.manual_worker import ManualWorker
from tests.servers import Server, ValkeyCluster
from toril.errors import (
    Closed,
    CrossSlot,
    InvalidOption,
    NotSerializable,
    OptionWarning,
    ParentNotFound,
    PayloadMismatch,
    PayloadTooLarge,
    RedisOutOfMemory,
    TorilError,
)
from toril.jobs import Job
from toril.producer import Queue
from toril.protocol.keys import QueueKeys
from toril.protocol.options import Deduplication, JobOptions, NewJob, ParentRef
from toril.telemetry.hooks import NoMetrics
from toril.transport import ConnectionPolicy
from toril.worker import Worker


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("emails", redis=server_url, prefix=prefix) as opened:
        yield opened


def commands_of(server: Server) -> int:
    """How many commands clients have sent; those inside of scripts do not count."""
    with server.client() as client:
        stats = client.info("commandstats")
    ours = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_time")
    return sum(stats[name]["calls"] for name in ours if name in stats)


def calls_and_reads(server: Server) -> tuple[int, int]:
    """How many scripts were called, and how many jobs were read, by scripts or without."""
    with server.client() as client:
        stats = client.info("commandstats")
    calls, reads = (stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "hgetall"))
    return calls, reads


class CountedAdds(NoMetrics):
    jobs = 0

    def increment_jobs_added(self, queue: str, count: int = 1) -> None:
        self.jobs += count


async def test_a_job_is_stored_as_it_was_given(queue: Queue, server: Server) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    job = await queue.add("send", {"to": "ä@b.c", "n": [1, None]}, attempts=5, priority=3)
    assert re.fullmatch("[A-Za-z0-9]{16}", job.id)
    assert not job.id.isdigit()
    assert (job.name, job.data, job.priority, job.max_attempts) == (
        "send",
        {"to": "ä@b.c", "n": [1, None]},
        3,
        5,
    )
    assert before < job.timestamp < before + timedelta(seconds=10)
    found = await queue.get_job(job.id)
    assert found is not None
    assert found.data == job.data
    assert found.opts == job.opts
    assert found.timestamp == job.timestamp
    with server.client() as client:
        stored = client.hgetall(queue.keys.job(job.id))
    assert b"attemptsMade" not in stored
    assert b"jobId" not in stored[b"opts"]


async def test_the_record_of_an_added_job_equals_the_stored_one(queue: Queue) -> None:
    parent = await queue.add("parent")
    job = await queue.add(
        "send",
        {"n": 1},
        job_id="mine",
        delay=60,
        priority=7,
        deduplication=Deduplication("same", 10),
        parent=ParentRef(parent.id, queue.keys.qualified),
    )
    found = await queue.get_job("mine")
    assert found is not None
    for field in ("name", "data", "delay", "priority", "timestamp", "parent", "opts"):
        assert getattr(found, field) == getattr(job, field), field
    assert found.record.parent_key == job.record.parent_key
    assert found.record.deduplication_id == job.record.deduplication_id == "same"


@pytest.mark.parametrize(
    ("given", "stored"), [((), b"{}"), ((None,), b"null"), ((0,), b"0"), (("",), b'""'), (([],), b"[]")]
)
async def test_data_of_any_json_form_is_kept_and_none_given_is_an_empty_object(
    queue: Queue, given: tuple[object, ...], stored: bytes
) -> None:
    job = await queue.add("x", *given)
    found = await queue.get_job(job.id)
    assert found is not None
    assert found.record.raw_data == stored
    if given:
        assert found.data == given[0]


@pytest.mark.parametrize("text", ["ünïcode", "emoji 🦬", "nul \0 inside", "\u2028 line"])
async def test_any_text_comes_back_exactly(queue: Queue, text: str) -> None:
    job = await queue.add("x", {"text": text, text: 1})
    found = await queue.get_job(job.id)
    assert found is not None
    assert found.data == {"text": text, text: 1}


async def test_ten_megabytes_pass_and_one_byte_more_is_refused_before_any_call(
    queue: Queue, server: Server
) -> None:
    options = len(b'{"attempts":3,"backoff":{"type":"exponential","delay":1000}}')
    largest = "x" * (10 * 1024 * 1024 - options - 2)
    job = await queue.add("big", largest)
    assert job.data == largest
    before = commands_of(server)
    with pytest.raises(PayloadTooLarge):
        await queue.add("big", largest + "x")
    assert commands_of(server) == before


async def test_a_given_id_is_stored_in_the_options_and_added_once(queue: Queue) -> None:
    first = await queue.add("x", {"n": 1}, job_id="order-17")
    again = await queue.add("x", {"n": 2}, job_id="order-17")
    assert first.id == again.id == "order-17"
    found = await queue.get_job("order-17")
    assert found is not None
    assert found.data == {"n": 1}
    assert found.opts["jobId"] == "order-17"
    assert (await queue.get_job_counts()).waiting == 1
    assert (first.added, first.data) == (True, {"n": 1})
    assert (again.added, again.data) == (False, {"n": 1})
    assert found.added  # nobody tried to add it


EXISTING: list[dict[str, Any]] = [
    {"job_id": "same"},
    {"job_id": "same", "delay": 60},
    {"job_id": "same", "priority": 5},
    {"deduplication": Deduplication("one")},
    {"deduplication": Deduplication("one"), "delay": 60},
    {"deduplication": Deduplication.throttle("one", 60)},
]


@pytest.mark.parametrize("ids", ["short", "uuid", "counter"])
@pytest.mark.parametrize("options", EXISTING)
async def test_a_job_that_is_not_added_is_the_stored_one_and_costs_no_further_call(
    server: Server, prefix: str, options: dict[str, Any], ids: Any
) -> None:
    counted = CountedAdds()
    queue: Queue[Any] = Queue("emails", redis=server.url, prefix=prefix, ids=ids, metrics=counted)
    async with queue:
        await queue.add("first", {"n": 1}, job_id="same", deduplication=Deduplication("one"))
        calls, reads = calls_and_reads(server)
        again = await queue.add("again", {"n": 2}, **options)
        assert calls_and_reads(server) == (calls + 1, reads + 1)
        assert (again.id, again.name, again.data, again.added) == ("same", "first", {"n": 1}, False)
        jobs = [("new", {"n": 3}), ("again", {"n": 4}, options), ("new", {"n": 5})]
        bulk = await queue.add_bulk(jobs)
        assert calls_and_reads(server) == (calls + 2, reads + 2)
        assert [(job.data["n"], job.added) for job in bulk] == [(3, True), (1, False), (5, True)]
    assert counted.jobs == 3


async def test_a_deduplicated_job_that_was_removed_is_returned_as_it_was_given(
    queue: Queue, server_url: str
) -> None:
    throttled = Deduplication.throttle("one", 60)
    first = await queue.add("x", 1, deduplication=throttled, remove_on_complete=True)
    async with ManualWorker(server_url, queue.keys) as manual_worker:
        await manual_worker.complete(await manual_worker.take())
    again = await queue.add("x", 2, deduplication=throttled)
    assert (again.id, again.added, again.data) == (first.id, False, 2)
    assert await queue.get_job(again.id) is None


async def test_ids_can_come_from_the_counter_of_the_queue(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix, ids="counter") as queue:
        jobs = await queue.add_bulk([("x", {"n": n}) for n in range(3)])
        assert [job.id for job in jobs] == ["1", "2", "3"]
        assert (await queue.add("x")).id == "4"


async def test_ids_can_be_uuids(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix, ids="uuid") as queue:
        assert uuid.UUID((await queue.add("x")).id).version == 4


async def test_short_ids_are_alphanumeric_and_all_different(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix, ids="short") as queue:
        ids = [job.id for job in await queue.add_bulk([("x", {"n": n}) for n in range(1000)])]
        assert len(set(ids)) == 1000
        assert all(len(one) == 16 and one.isascii() and one.isalnum() and not one.isdigit() for one in ids)
        assert (await queue.get_job(ids[500])) is not None
        assert (await queue.get_job_counts())["waiting"] == 1000


def test_an_unknown_form_of_ids_is_refused() -> None:
    with pytest.raises(InvalidOption, match="ids: is 'long'; choose"):
        Queue("emails", redis="redis://localhost", ids="long")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options",
    [
        {"priority": -1},
        {"priority": 2**21 + 1},
        {"delay": -1},
        {"attempts": 0},
        {"job_id": "17"},
        {"job_id": "meta"},
        {"job_id": "a:b"},
        {"no_such_option": 1},
    ],
)
async def test_what_is_invalid_is_refused_before_any_call(
    queue: Queue, server: Server, options: dict[str, object]
) -> None:
    before = commands_of(server)
    with pytest.raises(InvalidOption) as refused:
        await queue.add("x", {}, **options)  # type: ignore[arg-type]
    assert refused.value.field == next(iter(options))
    assert commands_of(server) == before


async def test_data_without_a_json_form_is_refused(queue: Queue) -> None:
    with pytest.raises(NotSerializable):
        await queue.add("x", {"n": float("nan")})
    with pytest.raises(NotSerializable, match=r"data\.items\[1\]: is of type object, which has no JSON form"):
        await queue.add("x", {"items": [0, object()]})
    assert (await queue.get_job_counts()).total == 0


async def test_the_defaults_of_a_queue_apply_unless_a_job_says_otherwise(
    server_url: str, prefix: str
) -> None:
    defaults = JobOptions(attempts=7, priority=2)
    async with Queue("emails", redis=server_url, prefix=prefix, defaults=defaults) as queue:
        plain = await queue.add("x")
        special = await queue.add("x", priority=9)
        (many,) = await queue.add_bulk([NewJob("x", {}, JobOptions(attempts=1))])
    assert (plain.max_attempts, plain.priority) == (7, 2)
    assert (special.max_attempts, special.priority) == (7, 9)
    assert (many.max_attempts, many.priority) == (1, 2)


async def test_five_hundred_concurrent_adds_are_a_few_round_trips(server: Server, prefix: str) -> None:
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        await queue.add("warm up")
        before = commands_of(server)
        jobs = await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(500)))
        assert commands_of(server) - before <= 10
        assert len({job.id for job in jobs}) == 500
        assert [job.data["n"] for job in jobs] == list(range(500))
        waiting = await queue.get_waiting()
        assert [job.data["n"] for job in waiting[1:]] == list(range(500))


async def test_adds_that_come_together_go_out_in_two_calls_and_a_few_in_one(
    server: Server, prefix: str
) -> None:
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        await queue.add("warm up")
        for number, calls in ((3, 1), (50, 2)):
            before = commands_of(server)
            await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(number)))
            assert commands_of(server) - before == calls


async def test_a_burst_after_jobs_that_came_one_by_one_keeps_its_order_and_takes_two_calls(
    server: Server, prefix: str
) -> None:
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        for n in range(4):
            await queue.add("x", {"n": n})
        before = commands_of(server)
        await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(4, 54)))
        assert commands_of(server) - before == 2  # the first at once, the others together
        assert [job.data["n"] for job in await queue.get_waiting()] == list(range(54))


async def test_pairs_after_jobs_that_came_one_by_one_share_their_calls(server: Server, prefix: str) -> None:
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        for n in range(4):
            await queue.add("x", {"n": n})
        before = commands_of(server)
        for n in range(20):
            await asyncio.gather(queue.add("x", {"n": n}), queue.add("x", {"n": n}))
        assert commands_of(server) - before <= 22


@pytest.mark.parametrize("number", [5, 50])
async def test_a_lost_connection_does_not_change_the_order_of_adds(
    server: Server, prefix: str, number: int
) -> None:
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        for n in range(3):
            await queue.add("x", {"n": n})
        with server.client() as client:
            for entry in client.client_list():
                if entry["cmd"].startswith("evalsha"):
                    client.client_kill_filter(_id=entry["id"])
        await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(3, 3 + number)))
        assert [job.data["n"] for job in await queue.get_waiting()] == list(range(3 + number))


async def test_a_bulk_is_one_call_whatever_else_is_added_at_the_same_time(
    server: Server, prefix: str
) -> None:
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        await queue.add("warm up")
        before = commands_of(server)
        await queue.add_bulk([("x", {"n": n}) for n in range(500)])
        assert commands_of(server) - before == 1
        before = commands_of(server)
        large = [("x", {"n": n, "text": "y" * 300_000}) for n in range(3)]
        await asyncio.gather(*(queue.add_bulk(large) for _ in range(4)))
        assert commands_of(server) - before == 4
        numbers = [job.data["n"] for job in (await queue.get_waiting())[501:]]
        assert numbers == [0, 1, 2] * 4


async def test_concurrent_adds_of_a_queue_that_is_not_open_yet_keep_their_order(
    server: Server, prefix: str
) -> None:
    queue = Queue("emails", redis=server.url, prefix=prefix)
    try:
        before = commands_of(server)
        await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(1200)))
        assert commands_of(server) - before <= 12
        assert [job.data["n"] for job in await queue.get_waiting()] == list(range(1200))
    finally:
        await queue.close()


async def test_each_of_many_concurrent_adds_has_its_own_error(queue: Queue) -> None:
    orphan = ParentRef("nobody", queue.keys.qualified)
    results = await asyncio.gather(
        queue.add("x", {"n": 0}),
        queue.add("x", {"n": 1}, parent=orphan),
        queue.add("x", {"n": 2}, priority=-1),
        queue.add("x", {"n": 3}),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["Job", "ParentNotFound", "InvalidOption", "Job"]
    assert [job.data["n"] for job in await queue.get_waiting()] == [0, 3]


async def test_a_bulk_is_checked_as_a_whole_before_the_first_job_is_sent(queue: Queue) -> None:
    with pytest.raises(InvalidOption):
        await queue.add_bulk([("x", {}), NewJob("x", object(), JobOptions())])
    with pytest.raises(InvalidOption):
        await queue.add_bulk(["x"])  # type: ignore[list-item]
    assert (await queue.get_job_counts()).total == 0
    assert await queue.add_bulk([]) == []


async def test_a_bulk_adds_what_it_can_and_raises_what_was_refused(queue: Queue) -> None:
    orphan = JobOptions(parent=ParentRef("nobody", queue.keys.qualified))
    with pytest.raises(ParentNotFound) as refused:
        await queue.add_bulk([("x", 1), NewJob("x", 2, orphan), ("x",), ("x", 3, {"lifo": True})])
    assert refused.value.__notes__ == ["1 of 4 jobs were not added"]
    assert [job.data for job in await queue.get_waiting()] == [3, 1, {}]


async def test_a_large_bulk_keeps_its_order(queue: Queue) -> None:
    jobs = await queue.add_bulk([("x", {"n": n, "fill": "y" * 900}) for n in range(2500)])
    assert [job.id for job in await queue.get_waiting()] == [job.id for job in jobs]


async def test_an_add_that_is_cancelled_before_it_is_sent_adds_nothing(queue: Queue) -> None:
    task = asyncio.create_task(queue.add("x"))
    await asyncio.sleep(0)  # it has given its job to the intake, which has not taken a turn yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await queue.add("y")
    assert [job.name for job in await queue.get_waiting()] == ["y"]


async def test_closing_sends_what_was_given(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix) as queue:
        tasks = [asyncio.create_task(queue.add("x", n)) for n in range(20)]
        await asyncio.sleep(0)
    assert len(await asyncio.gather(*tasks)) == 20
    with pytest.raises(Closed):
        await queue.add("x")
    with pytest.raises(Closed):
        await queue.get_job_counts()


async def test_duplicates_get_the_id_of_the_first(queue: Queue) -> None:
    first = await queue.add("x", 1, deduplication=Deduplication("same"))
    second = await queue.add("x", 2, deduplication=Deduplication("same"))
    assert second.id == first.id
    assert await queue.get_deduplication_job_id("same") == first.id
    assert await queue.remove_deduplication_key("same")
    third = await queue.add("x", 3, deduplication=Deduplication("same"))
    assert third.id != first.id


async def test_only_the_last_of_a_debounced_burst_runs(queue: Queue, server_url: str, prefix: str) -> None:
    ran: list[int] = []
    done = asyncio.Event()

    async def handle(job: Job[int]) -> None:
        ran.append(job.data)
        done.set()

    async with Worker("emails", handle, redis=server_url, prefix=prefix), asyncio.timeout(20):
        jobs = [
            await queue.add("index", n, deduplication=Deduplication.debounce("page", 0.5)) for n in range(5)
        ]
        await done.wait()
    assert ran == [4]
    assert [await queue.get_job(job.id) is not None for job in jobs] == [False] * 4 + [True]


@dataclass
class Email:
    to: str
    copies: int = 1


async def test_a_payload_model_is_checked_at_add_and_read_back_as_itself(
    server_url: str, prefix: str
) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix, payload=Email) as queue:
        job = await queue.add("send", Email("a@b.c", 2))
        assert job.data == Email("a@b.c", 2)
        found = await queue.get_job(job.id)
        assert found is not None
        assert found.data == Email("a@b.c", 2)
        with pytest.raises(PayloadMismatch):
            await queue.add("send", {"copies": "many"})  # type: ignore[arg-type]
        assert (await queue.get_job_counts()).total == 1


async def test_a_json_schema_is_a_payload_model_too(server_url: str, prefix: str) -> None:
    schema = {"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}}
    async with Queue("emails", redis=server_url, prefix=prefix, payload=schema) as queue:
        await queue.add("send", {"to": "a@b.c"})
        with pytest.raises(PayloadMismatch):
            await queue.add("send", {"from": 1})


async def test_a_queue_introduces_itself_once_and_leaves_what_others_wrote(
    server: Server, prefix: str
) -> None:
    with server.client() as client:
        async with Queue("emails", redis=server.url, prefix=prefix) as queue:
            assert client.hgetall(queue.keys.meta) == {
                b"version": b"bullmq:5.62.0",
                b"opts.maxLenEvents": b"10000",
            }
            assert await queue.get_version() == "bullmq:5.62.0"
        client.hset(queue.keys.meta, mapping={"version": "bullmq:5.1.0", "opts.maxLenEvents": 7})
        async with Queue("emails", redis=server.url, prefix=prefix):
            assert client.hgetall(queue.keys.meta) == {
                b"version": b"bullmq:5.1.0",
                b"opts.maxLenEvents": b"7",
            }
        async with Queue("emails", redis=server.url, prefix=prefix, events_max_len=99):
            assert client.hget(queue.keys.meta, "opts.maxLenEvents") == b"99"
        async with Queue("looked-at", redis=server.url, prefix=prefix, skip_meta=True) as looked_at:
            await looked_at.get_job_counts()
            assert not client.exists(looked_at.keys.meta)


async def test_an_empty_queue_warns_when_the_other_layout_holds_jobs(server_url: str, prefix: str) -> None:
    async with Queue("emails", redis=server_url, prefix=prefix, hash_tag=True) as tagged:
        await tagged.add("x")
    with pytest.warns(OptionWarning, match="hash_tag=True"):
        async with Queue("emails", redis=server_url, prefix=prefix):
            pass


async def test_a_full_server_refuses_adds_with_a_clear_error(start_valkey, prefix: str) -> None:  # type: ignore[no-untyped-def]
    server = start_valkey(maxmemory="6mb", maxmemory_policy="noeviction")
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        with pytest.raises(RedisOutOfMemory, match="maxmemory"):  # noqa: PT012
            for _ in range(200):
                await queue.add("x", "y" * 100_000)


async def test_a_server_that_is_not_there_raises_within_the_policy(prefix: str) -> None:
    from toril.errors import RedisUnavailable

    policy = ConnectionPolicy(connect_timeout=0.2, reconnect_delay=0.01, call_attempts=2)
    queue = Queue("emails", redis="redis://127.0.0.1:1", prefix=prefix, policy=policy)
    with pytest.raises(RedisUnavailable):
        await queue.add("x")
    await queue.close()


async def test_adds_coalesce_on_a_cluster_and_keep_their_order(cluster: ValkeyCluster, prefix: str) -> None:
    async with Queue("emails", redis=cluster.url, prefix=prefix) as queue:
        assert queue.keys.wait == f"{prefix}:{{emails}}:wait"
        await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(600)))
        assert [job.data["n"] for job in await queue.get_waiting()] == list(range(600))
        async with ManualWorker(cluster.url, queue.keys) as manual_worker:
            job = await manual_worker.take()
            assert job.data == {"n": 0}
        await queue.obliterate(force=True)


async def test_a_parent_in_another_slot_is_refused_before_any_call(
    cluster: ValkeyCluster, prefix: str
) -> None:
    async with Queue("a", redis=cluster.url, prefix=prefix) as queue:
        other = QueueKeys("b", prefix, hash_tag=True)
        with pytest.raises(CrossSlot):
            await queue.add("x", parent=ParentRef("1", other.qualified))


async def test_a_lent_client_lends_its_settings_only(server: Server, prefix: str) -> None:
    with redis.Redis(host="127.0.0.1", port=server.port) as client:
        async with Queue("emails", redis=client, prefix=prefix) as queue:
            await queue.add("x")
        assert client.ping()


def test_a_second_event_loop_is_refused_and_does_not_wait_for_ever(server_url: str, prefix: str) -> None:
    queue: Queue = Queue("emails", redis=server_url, prefix=prefix)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(queue.count()) == 0
        calls: list[tuple[Callable[..., Coroutine[Any, Any, object]], tuple[Any, ...]]] = [
            (queue.add, ("send", {})), (queue.add_bulk, ([("send", {})],)), (queue.count, ()), (queue.close, ()),
        ]  # fmt: skip
        for call, arguments in calls:
            with pytest.raises(TorilError, match="belongs to another event loop; make a Queue within each"):
                second.run(call(*arguments))
        assert first.run(queue.add("send", {})).name == "send"
        first.run(queue.close())
        second.run(queue.close())


async def test_a_closed_queue_is_not_entered_again(server_url: str, prefix: str) -> None:
    queue: Queue = Queue("emails", redis=server_url, prefix=prefix)
    async with queue:
        pass
    with pytest.raises(Closed, match="'emails' was closed; make a new Queue"):
        async with queue:
            pass
