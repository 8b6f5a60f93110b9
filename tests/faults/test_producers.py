"""Producers whose connection breaks in the middle of a call: nothing is added twice, nothing is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from tests.faults.proxy import FAULTS, Kind, Proxy
from tests.integration.manual_worker import ManualWorker
from tests.servers import Server
from tests.waiting import until
from toril import FlowNode, FlowProducer, Queue
from toril.errors import Closed, ReplyLost
from toril.transport import ConnectionPolicy

POLICY = ConnectionPolicy(
    command_timeout=0.25, connect_timeout=2, reconnect_delay=0.005, max_reconnect_delay=0.02, call_attempts=5
)
# Leaves time for a worker between the lost reply and the second try.
PATIENT = ConnectionPolicy(command_timeout=2, reconnect_delay=0.5, reconnect_jitter=0)


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    with Proxy(valkey.port) as between:
        yield between


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("ids", ["short", "counter"])
async def test_a_job_whose_reply_was_lost_is_added_once(
    proxy: Proxy, prefix: str, kind: Kind, ids: Literal["short", "counter"]
) -> None:
    async with Queue("emails", redis=proxy.url, prefix=prefix, policy=POLICY, ids=ids) as queue:
        fault = proxy.arm(kind, b"toril:ledger")
        job = await queue.add("x", {"n": 1})
        assert fault.struck.is_set() or kind == "swallow"
        assert [one.id for one in await queue.get_waiting()] == [job.id]
        assert job.added  # by the call whose reply was lost


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_job_that_existed_is_distinguished_from_one_that_a_lost_call_added(
    proxy: Proxy, prefix: str, kind: Kind
) -> None:
    async with Queue("emails", redis=proxy.url, prefix=prefix, policy=POLICY) as queue:
        await queue.add("first", {"n": 1}, job_id="known")
        proxy.arm(kind, b"toril:ledger")
        new, known = await queue.add_bulk([("x", {"n": 2}), ("x", {"n": 3}, {"job_id": "known"})])
        assert (new.added, new.data) == (True, {"n": 2})
        assert (known.added, known.name, known.data) == (False, "first", {"n": 1})


@pytest.mark.parametrize("kind", FAULTS)
async def test_many_jobs_added_at_once_over_a_breaking_connection_are_all_there_once(
    proxy: Proxy, prefix: str, kind: Kind
) -> None:
    async with Queue("emails", redis=proxy.url, prefix=prefix, policy=POLICY) as queue:
        proxy.arm(kind, b"toril:ledger")
        jobs = await asyncio.gather(*(queue.add("x", {"n": n}) for n in range(1200)))
        waiting = await queue.get_waiting()
    assert sorted(job.id for job in waiting) == sorted(job.id for job in jobs)


async def test_a_job_that_was_finished_and_removed_before_the_second_try_is_not_added_again(
    proxy: Proxy, valkey: Server, prefix: str
) -> None:
    async with (
        Queue("emails", redis=proxy.url, prefix=prefix, policy=PATIENT) as queue,
        ManualWorker(valkey.url, queue.keys) as manual_worker,
    ):
        await queue.add("first", remove_on_complete=True)  # so that the server knows the script
        await manual_worker.complete(await manual_worker.take())
        before = proxy.forwarded(b"toril:ledger")
        fault = proxy.arm("cut after", b"toril:ledger")
        adding = asyncio.create_task(queue.add("x", remove_on_complete=True))
        await asyncio.to_thread(fault.struck.wait)
        await manual_worker.complete(await manual_worker.take())
        job = await adding
        assert proxy.forwarded(b"toril:ledger") == before + 2
        assert await queue.get_job(job.id) is None
        assert (await queue.get_job_counts()).total == 0


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_flow_whose_reply_was_lost_is_added_once(proxy: Proxy, prefix: str, kind: Kind) -> None:
    family = FlowNode(
        "parent", queue="a", children=[FlowNode("child", queue="b"), FlowNode("child", queue="b")]
    )
    async with FlowProducer(redis=proxy.url, prefix=prefix, policy=POLICY) as flows:
        proxy.arm(kind, b"toril:ledger")
        flow = await flows.add(family)
        assert all(job.added for job in flow.walk())
        found = await flows.get_flow(flow.job.id, "a")
        assert found is not None
        assert {job.id for job in found.walk()} == {job.id for job in flow.walk()}
    async with Queue("b", redis=proxy.url, prefix=prefix, policy=POLICY) as queue:
        assert (await queue.get_job_counts()).waiting == 2


@pytest.mark.parametrize("kind", FAULTS)
async def test_a_scheduler_whose_reply_was_lost_has_one_next_job(
    proxy: Proxy, prefix: str, kind: Kind
) -> None:
    async with Queue("reports", redis=proxy.url, prefix=prefix, policy=POLICY) as queue:
        proxy.arm(kind, b":repeat")
        job = await queue.schedulers.upsert("nightly", cron="0 3 * * *", tz="UTC")
        assert [one.id for one in await queue.get_delayed()] == [job.id]


async def test_a_connection_that_stays_broken_raises_for_each_job(proxy: Proxy, prefix: str) -> None:
    async with Queue("emails", redis=proxy.url, prefix=prefix, policy=POLICY) as queue:
        for _ in range(POLICY.call_attempts):
            proxy.arm("cut after", b"toril:ledger")
        results = await asyncio.gather(queue.add("x"), queue.add("y"), return_exceptions=True)
        assert [type(result) for result in results] == [ReplyLost, ReplyLost]
        await queue.add("z")
        names = [job.name for job in await queue.get_waiting()]
    assert names.count("z") == 1
    assert len(names) == len(set(names))  # the first two are there or not, but never twice


@pytest.mark.parametrize("kind", FAULTS)
async def test_whoever_waits_for_a_job_hears_of_its_end_over_a_breaking_connection(
    proxy: Proxy, valkey: Server, prefix: str, kind: Kind
) -> None:
    policy = ConnectionPolicy(
        command_timeout=1, block_margin=0.2, reconnect_delay=0.005, max_reconnect_delay=0.02
    )
    async with (
        Queue("emails", redis=proxy.url, prefix=prefix, policy=policy) as queue,
        ManualWorker(valkey.url, queue.keys) as manual_worker,
    ):
        job = await queue.add("x")
        proxy.arm(kind, b"XREAD")
        waiting = asyncio.create_task(job.wait_until_finished(30))
        await manual_worker.complete(await manual_worker.take(), "done")
        assert await waiting == "done"


def tasks_named(name: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == name]


async def test_a_call_that_is_interrupted_from_outside_leaves_nobody_waiting(
    proxy: Proxy, prefix: str
) -> None:
    policy = ConnectionPolicy(command_timeout=0.3, reconnect_delay=20, max_reconnect_delay=20)
    async with Queue("emails", redis=proxy.url, prefix=prefix, policy=policy) as queue:
        await queue.add("first")
        proxy.arm("cut after", b"toril:ledger")
        adding = asyncio.create_task(queue.add("x"))
        trying = await until(lambda: tasks_named("toril-transport"), "the transport tries to connect")
        trying[0].cancel()  # as a loop does that is about to end
        with pytest.raises(Closed):
            await adding
