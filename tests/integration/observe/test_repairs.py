"""What the doctor mends: lost jobs, ids without jobs, schedulers without a next run; and nothing where nothing is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.manual_worker import ManualWorker
from tests.interop.difference import differences
from tests.interop.keyspace import dump
from tests.servers import Server
from toril import FlowNode, FlowProducer, Job, Queue, Worker
from toril.commands import cleaning
from toril.observe.doctor import Diagnosis, Doctor, Repairs
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

QUEUE = "emails"
KEYS = QueueKeys(QUEUE, "bull", hash_tag=False)


async def repaired(url: str) -> Repairs:
    (done,) = await Doctor(url).repair()
    assert done.queue == QUEUE
    assert done.troubles == []
    return done


def stuck(diagnosis: Diagnosis) -> list[str]:
    return [one.message for one in diagnosis.findings if one.check in ("stuck", "schedulers")]


@pytest.mark.parametrize("schedule", [{"every": 3600.0}, {"cron": "0 3 * * *"}], ids=["every", "cron"])
async def test_what_the_official_drain_leaves_behind_is_mended(
    healthy: Server, schedule: dict[str, Any]
) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue, AsyncTransport(healthy.url) as transport:
        before = await queue.add("before", {})
        run = await queue.schedulers.upsert("tick", **schedule)
        await queue.promote_jobs()
        await queue.add("behind", {})
        await transport.run(cleaning.official_drain(queue.keys))
        said = " ".join(stuck(await Doctor(healthy.url).examine()))
        assert "have no data" in said and "in no list" in said and "no next run" in said
        done = await repaired(healthy.url)
        assert done.removed_ids == [before.id]
        assert done.put_back == {run.id: "delayed"}
        assert done.schedulers == ["tick"]
        assert stuck(await Doctor(healthy.url).examine()) == []
        if "every" in schedule:
            ticks = asyncio.Semaphore(0)

            async def handle(job: Job[Any]) -> None:
                assert job.name == "tick"
                ticks.release()

            await queue.promote_jobs()
            async with asyncio.timeout(20), Worker(QUEUE, handle, redis=healthy.url):
                await ticks.acquire()
            assert (await queue.get_job_counts()).delayed == 1  # the run after it


@pytest.mark.parametrize("schedule", [{"every": 3600.0}, {"cron": "0 3 * * *"}], ids=["every", "cron"])
async def test_a_next_run_whose_data_is_gone_is_made_again(healthy: Server, schedule: dict[str, Any]) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        run = await queue.schedulers.upsert(
            "tick", **schedule, name="report", data={"n": 1}, options={"attempts": 4}
        )
        with healthy.client() as client:
            for place in (KEYS.wait, KEYS.delayed):
                client.delete(place)
            client.delete(KEYS.job(run.id))
        done = await repaired(healthy.url)
        assert (done.schedulers, done.put_back) == (["tick"], {})
        assert stuck(await Doctor(healthy.url).examine()) == []
        jobs = [*await queue.get_waiting(), *await queue.get_delayed()]
        assert [(job.name, job.data, job.max_attempts) for job in jobs] == [("report", {"n": 1}, 4)]
        assert (await Doctor(healthy.url).repair()) == []


async def test_a_scheduler_that_is_over_gets_no_run(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        run = await queue.schedulers.upsert("tick", every=3600, limit=1)
        with healthy.client() as client:
            client.delete(KEYS.wait, KEYS.delayed, KEYS.job(run.id))
        assert await Doctor(healthy.url).repair() == []
        assert (await queue.get_job_counts()).total == 0


async def test_lost_jobs_go_back_to_where_they_belong(healthy: Server) -> None:
    async with (
        Queue(QUEUE, redis=healthy.url) as queue,
        ManualWorker(healthy.url, KEYS) as manual_worker,
        FlowProducer(redis=healthy.url) as flows,
    ):
        await queue.add("done", {})
        done = await manual_worker.take()
        await manual_worker.complete(done)
        await queue.add("failed", {})
        failed = await manual_worker.take()
        await manual_worker.fail(failed)
        plain_job = await queue.add("plain", {})
        first = await queue.add("first", {}, priority=2)
        later = await queue.add("later", {}, delay=3600)
        child = FlowNode("child", queue="other", data={})
        flow = await flows.add(FlowNode("parent", queue=QUEUE, data={}, children=[child]))
        with healthy.client() as client:
            due = client.zscore(KEYS.delayed, later.id)
            places = ("wait", "prioritized", "delayed", "completed", "failed", "waiting-children", "marker")
            client.delete(*(KEYS.base + place for place in places))
        done_repairs = await repaired(healthy.url)
        assert done_repairs.put_back == {
            done.id: "completed",
            failed.id: "failed",
            plain_job.id: "delayed",
            first.id: "delayed",
            later.id: "delayed",
            flow.job.id: "waiting-children",
        }
        with healthy.client() as client:
            assert client.zscore(KEYS.delayed, later.id) == due
        seen: list[str] = []
        async with (
            asyncio.timeout(20),
            Worker(QUEUE, lambda job: seen.append(job.name), redis=healthy.url) as one,
        ):
            await one.run_until_idle()
        assert sorted(seen) == ["first", "plain"]
        assert stuck(await Doctor(healthy.url).examine()) == []


async def test_a_repair_leaves_a_healthy_queue_alone(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add_bulk([("send", {"n": n}) for n in range(20)])
        await queue.add("later", {}, delay=60)
        await queue.schedulers.upsert("tick", every=3600)
        with healthy.client() as client:
            before = dump(client)
            assert await Doctor(healthy.url).repair() == []
            assert not differences(before, dump(client))


async def test_an_id_without_data_is_found_at_either_end_of_a_long_list(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        jobs = await queue.add_bulk([("send", {"n": n}) for n in range(5000)])
        with healthy.client() as client:
            client.delete(KEYS.job(jobs[0].id), KEYS.job(jobs[-1].id))
        assert set((await repaired(healthy.url)).removed_ids) == {jobs[0].id, jobs[-1].id}
        assert (await queue.get_job_counts()).waiting == 4998


async def test_the_search_for_lost_jobs_is_bounded(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add("send", {})
        with healthy.client() as client:
            for start in range(0, 50_000, 5000):
                client.mset({f"other:{n}": 1 for n in range(start, start + 5000)})
            client.config_resetstat()
            diagnosis = await Doctor(healthy.url, queues=[QUEUE], most_keys=1000).examine()
            assert client.info("commandstats")["cmdstat_scan"]["calls"] <= 6  # of some 25
        # What was not examined may be broken: the server does not count as healthy.
        assert any("only 1000 of its keys" in one.message for one in diagnosis.problems())
        assert not diagnosis.healthy


async def test_a_list_that_was_not_read_to_its_middle_is_not_healthy(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add_bulk([("send", {})] * 50)
        named = await Doctor(healthy.url, queues=[QUEUE], most_keys=40).examine()
        assert any("of the ids of a list" in one.message for one in named.problems())
        whole = await Doctor(healthy.url, queues=[QUEUE], most_keys=1000).examine()
        assert not any("of the ids of a list" in one.message for one in whole.findings)


async def test_an_id_whose_key_is_no_hash_is_found(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add("send", {})
        with healthy.client() as client:
            client.set(queue.keys.job("planted"), "a string")
            client.zadd(queue.keys.failed, {"planted": 1})
        diagnosis = await Doctor(healthy.url, queues=[QUEUE]).examine()
        found = [one.message for one in diagnosis.problems() if "are no jobs" in one.message]
        assert found == ["1 ids are no jobs, because their keys hold another type than a hash: planted"]


async def test_a_scheduler_whose_key_is_no_hash_is_found(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        with healthy.client() as client:
            client.set(f"{queue.keys.repeat}:planted", "a string")
            client.zadd(queue.keys.repeat, {"planted": 1})
        diagnosis = await Doctor(healthy.url, queues=[QUEUE]).examine()
        found = [one.message for one in diagnosis.problems() if one.check == "schedulers"]
        assert len(found) == 1 and "scheduler planted" in found[0] and "cannot be read" in found[0]


async def test_a_setting_that_is_no_number_is_found(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.set_global_concurrency(3)
        with healthy.client() as client:
            client.hset(queue.keys.meta, "opts.maxLenEvents", "x")
        diagnosis = await Doctor(healthy.url, queues=[QUEUE]).examine()
        found = [one.message for one in diagnosis.problems() if "is not a number" in one.message]
        assert len(found) == 1 and "opts.maxLenEvents" in found[0]
