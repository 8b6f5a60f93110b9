"""The doctor finds what was planted, and nothing where nothing is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import redis

from tests.clocks import SetClock
from tests.integration.manual_worker import ManualWorker
from tests.servers import Server, free_port
from tests.waiting import until_equal
from toril import FlowNode, FlowProducer, Job, ListQueue, ListWorker, Queue, StreamQueue, StreamWorker, Worker
from toril.commands.library import manifest
from toril.commands.schedulers import BrokenScheduler, record_broken
from toril.errors import OptionWarning
from toril.observe.doctor import Diagnosis, Doctor, Finding, acl_rules
from toril.observe.exporter import Exporter
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

QUEUE = "emails"
KEYS = QueueKeys(QUEUE, "bull", hash_tag=False)


async def diagnosed(url: str, **more: Any) -> Diagnosis:
    return await Doctor(url, **more).examine()


def only(diagnosis: Diagnosis, check: str) -> Finding:
    """The one thing that was found, which must be what was planted."""
    found = diagnosis.problems()
    assert [one.check for one in found] == [check], found
    assert found[0].remedy, "a finding without a remedy is a complaint"
    return found[0]


# --- nothing is wrong ---------------------------------------------------------------------------------------


async def test_a_healthy_server_with_busy_queues_of_all_kinds_gives_no_finding(healthy: Server) -> None:
    url, seen, examined = healthy.url, asyncio.Event(), asyncio.Event()

    async def handle(_: object) -> None:
        seen.set()
        await examined.wait()

    async with (
        Queue(QUEUE, redis=url) as queue,
        ListQueue("gen", redis=url) as listed,
        StreamQueue("jobs.b", redis=url) as stream,
    ):
        await queue.add_bulk([("send", {"n": n}) for n in range(200)])
        await queue.add("later", {}, delay=60)
        await listed.add_bulk([("work", {})] * 50)
        await stream.add_bulk([("work", {})] * 50)
        async with (
            Worker(QUEUE, handle, redis=url, concurrency=10),
            ListWorker("gen", handle, redis=url, concurrency=5),
            StreamWorker("jobs.b", handle, redis=url, concurrency=5),
        ):
            await seen.wait()
            # In a loop of its own: the way to the server is measured, not how busy these workers are.
            diagnosis = await asyncio.to_thread(lambda: asyncio.run(diagnosed(url)))
            examined.set()
    assert diagnosis.problems() == []
    assert diagnosis.healthy and diagnosis.queues == 3
    checks = {one.check for one in diagnosis.findings}
    assert checks >= {
        "connection",
        "version",
        "persistence",
        "eviction",
        "memory",
        "clock",
        "latency",
        "scripts",
    }
    assert checks >= {"rights", "queues"}


async def test_an_examination_changes_nothing(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add("send", {"n": 1})
    with healthy.client() as client:
        before = {key: client.dump(key) for key in client.scan_iter()}
        await diagnosed(healthy.url)
        assert {key: client.dump(key) for key in client.scan_iter()} == before


# --- planted: the server ------------------------------------------------------------------------------------


async def test_it_finds_a_server_that_is_away() -> None:
    finding = only(await diagnosed(f"redis://127.0.0.1:{free_port()}"), "connection")
    assert finding.level == "problem"


async def test_it_finds_a_wrong_password_and_does_not_repeat_it(healthy: Server) -> None:
    finding = only(await diagnosed(f"redis://default2:wrong-8841@127.0.0.1:{healthy.port}"), "connection")
    assert "refuses the login" in finding.message
    assert "wrong-8841" not in finding.message


async def test_it_finds_a_server_that_writes_nothing_to_disk(start_valkey: Callable[..., Server]) -> None:
    finding = only(await diagnosed(start_valkey().url), "persistence")
    assert "a restart loses all jobs" in finding.message


async def test_it_finds_a_server_that_may_delete_jobs(healthy: Server) -> None:
    with healthy.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    finding = only(await diagnosed(healthy.url), "eviction")
    assert finding.level == "problem" and "allkeys-lru" in finding.message


async def test_it_finds_a_server_that_is_almost_full(healthy: Server) -> None:
    with healthy.client() as client:
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", str(round(used * 1.1)))
    assert only(await diagnosed(healthy.url), "memory").level == "problem"


async def test_it_finds_clocks_that_disagree(healthy: Server) -> None:
    finding = only(await diagnosed(healthy.url, clock=SetClock(time.time() + 90)), "clock")
    assert "90" in finding.message and "ahead of" in finding.message


async def test_it_finds_a_slow_way_to_the_server(healthy: Server) -> None:
    serving: set[asyncio.Task[Any]] = set()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        there, back = await asyncio.open_connection("127.0.0.1", healthy.port)

        async def fetch_loop(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
            while part := await source.read(65_536):
                await asyncio.sleep(delay)
                sink.write(part)
            sink.close()

        await asyncio.gather(fetch_loop(reader, back, 0.03), fetch_loop(there, writer, 0))

    proxy = await asyncio.start_server(slowly, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        assert only(await diagnosed(f"redis://127.0.0.1:{port}"), "latency").level == "warning"
        await asyncio.wait(serving)


async def test_it_finds_a_replica(healthy: Server, start_valkey: Callable[..., Server]) -> None:
    replica = start_valkey(appendonly="yes", replicaof=f"127.0.0.1 {healthy.port}")
    finding = next(one for one in (await diagnosed(replica.url)).problems() if one.check == "role")
    assert finding.level == "problem"


async def test_it_finds_scripts_that_were_changed(healthy: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(manifest(), "pause-7.lua", "0" * 64)
    finding = next(one for one in (await diagnosed(healthy.url)).problems() if one.check == "scripts")
    assert "pause-7.lua" in finding.message


async def test_it_finds_a_user_without_the_rights(healthy: Server) -> None:
    with healthy.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "poor", "on", ">pw", "~bull:*", "+@all", "-xadd", "-bzpopmin", "-client|list"
        )
    finding = only(await diagnosed(f"redis://poor:pw@127.0.0.1:{healthy.port}"), "rights")
    assert "XADD" in finding.message and "BZPOPMIN" in finding.message


# --- planted: the queues ------------------------------------------------------------------------------------


async def test_it_finds_a_queue_that_exists_in_two_layouts(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url, hash_tag=False) as queue:
        await queue.add("send", {})
    with pytest.warns(OptionWarning, match="other key layout"):
        async with Queue(QUEUE, redis=healthy.url, hash_tag=True) as queue:
            await queue.add("send", {})
    finding = only(await diagnosed(healthy.url), "layout")
    assert "bull:{emails}:*" in finding.message


async def test_it_finds_two_generations_of_bullmq_on_a_paused_queue(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.pause()
        job = await queue.add("send", {})
        late = await queue.add("send", {})
    with healthy.client() as client:
        client.lrem(KEYS.paused, 1, late.id)
        client.lpush(KEYS.wait, late.id)
        finding = only(await diagnosed(healthy.url), "generation")
        assert finding.level == "problem"
        assert client.lrange(KEYS.paused, 0, -1) == [job.id.encode()]


async def test_it_warns_of_a_queue_made_by_the_next_generation(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add("send", {})
    with healthy.client() as client:
        client.hset(KEYS.meta, "version", "bullmq:6.7.0")
    assert only(await diagnosed(healthy.url), "generation").level == "warning"


async def test_it_finds_jobs_in_no_list(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        job = await queue.add("send", {})
    with healthy.client() as client:
        client.lrem(KEYS.wait, 1, job.id)
    finding = only(await diagnosed(healthy.url), "stuck")
    assert job.id in finding.message and "in no list" in finding.message


async def test_it_finds_waiting_jobs_without_data(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        job = await queue.add("send", {})
    with healthy.client() as client:
        client.delete(KEYS.job(job.id))
    assert "have no data" in only(await diagnosed(healthy.url), "stuck").message


async def test_it_finds_parents_of_children_that_are_gone(healthy: Server) -> None:
    async with FlowProducer(redis=healthy.url) as flows:
        child = FlowNode("child", queue=QUEUE, data={})
        flow = await flows.add(FlowNode("parent", queue=QUEUE, data={}, children=[child]))
    assert (await diagnosed(healthy.url)).healthy
    with healthy.client() as client:
        (lost,) = client.lrange(KEYS.wait, 0, -1)
        client.delete(KEYS.wait, KEYS.marker, KEYS.job(lost.decode()))
    finding = only(await diagnosed(healthy.url), "stuck")
    assert flow.job.id in finding.message and "children that do not exist" in finding.message


async def test_it_finds_jobs_in_two_places(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        job = await queue.add("send", {})
    with healthy.client() as client:
        client.zadd(KEYS.failed, {job.id: 1})
    finding = only(await diagnosed(healthy.url), "stuck")
    assert job.id in finding.message and "two places" in finding.message


async def test_it_finds_schedulers_whose_next_run_is_gone(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.schedulers.upsert("nightly", cron="0 3 * * *", name="report", data={})
    assert (await diagnosed(healthy.url)).healthy
    with healthy.client() as client:
        (run,) = client.zrange(KEYS.delayed, 0, -1)
        client.delete(KEYS.delayed, KEYS.marker, KEYS.job(run.decode()))
    finding = only(await diagnosed(healthy.url), "stuck")
    assert "nightly" in finding.message and "no next run" in finding.message


async def test_it_finds_schedulers_that_cannot_be_read_before_and_after_their_run(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        start = datetime(2025, 1, 1, tzinfo=UTC)
        await queue.schedulers.upsert("fine", cron="0 3 * * *", start=start, tz="Europe/Zurich")
        await queue.schedulers.upsert("future", cron="0 3 * * *")
        await queue.schedulers.upsert("often", every=60)
        run = await queue.schedulers.upsert("past", every=3600)
    assert (await diagnosed(healthy.url)).healthy
    note = BrokenScheduler(id="past", job_id=run.id, reason="it is odd", since_ms=1, data=b"{}", opts=b"{}")
    async with AsyncTransport(healthy.url) as transport:
        await transport.run(record_broken(KEYS, note))
        await transport.run(record_broken(KEYS, replace(note, id="fine")))  # has another job: is not broken
    with healthy.client() as client:
        client.hset(f"{KEYS.repeat}:future", "pattern", "soon 3 * * *")
        client.hset(f"{KEYS.repeat}:often", "every", "soon")
    findings = [one for one in (await diagnosed(healthy.url)).problems() if one.check == "schedulers"]
    assert [one.level for one in findings] == ["problem"] * 3
    future, often, past = sorted(one.message for one in findings)
    assert often.startswith("scheduler often cannot add its next job:")
    assert future.startswith("scheduler future cannot add its next job: cron:")
    assert past == f"scheduler past cannot add its next job: no job follows {run.id}: it is odd"
    async with Exporter(healthy.url) as exporter:
        assert f'bullmq_broken_schedulers{{queue="{QUEUE}"}} 1.0' in (await exporter.scrape()).decode()


async def test_it_finds_locks_of_jobs_that_are_not_active(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        job = await queue.add("send", {})
    with healthy.client() as client:
        client.set(KEYS.lock(job.id), "somebody", px=60_000)
    assert "locks belong to jobs that are not active" in only(await diagnosed(healthy.url), "stuck").message


async def test_it_finds_active_jobs_of_dead_workers(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add("send", {})
    manual_worker = ManualWorker(healthy.url, KEYS)
    job: Job[Any] = await manual_worker.take()
    await manual_worker.transport.close()
    assert only_healthy(await diagnosed(healthy.url))
    with healthy.client() as client:
        client.delete(KEYS.lock(job.id))
    finding = only(await diagnosed(healthy.url), "stuck")
    assert "have no lock" in finding.message and finding.level == "problem"


def only_healthy(diagnosis: Diagnosis) -> bool:
    assert diagnosis.problems() == []
    return True


async def test_it_finds_delayed_jobs_past_their_time(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        job = await queue.add("send", {}, delay=60)
    with healthy.client() as client:
        client.zadd(KEYS.delayed, {job.id: (int(time.time() * 1000) - 60_000) * 4096})
    assert "past their time" in only(await diagnosed(healthy.url), "stuck").message


async def test_it_finds_ready_jobs_without_a_marker(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add("send", {})
    with healthy.client() as client:
        client.delete(KEYS.marker)
        # Ready for ten seconds: long enough to be more than a hiccup.
        (job_id,) = client.lrange(KEYS.wait, 0, -1)
        client.hset(KEYS.job(job_id.decode()), "timestamp", int(time.time() * 1000) - 10_000)
    assert "marker" in only(await diagnosed(healthy.url), "stuck").message


async def test_it_finds_queues_without_workers(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        job = await queue.add("send", {})
    with healthy.client() as client:
        client.hset(KEYS.job(job.id), "timestamp", int(time.time() * 1000) - 600_000)
    finding = only(await diagnosed(healthy.url), "neglected")
    assert "no worker is connected" in finding.message


async def test_it_finds_groups_that_hold_jobs_without_a_worker_of_toril(healthy: Server) -> None:
    async def nothing(_: Job[Any]) -> None: ...

    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.pause_group("tenant")
        job = await queue.add("send", {}, group="tenant")
        async with Worker(QUEUE, nothing, redis=healthy.url):
            await until_equal(job.get_state, "delayed")
            assert not (await diagnosed(healthy.url)).problems()
    assert "1 groups hold jobs back" in only(await diagnosed(healthy.url), "neglected").message


async def test_it_finds_a_paused_queue_with_jobs_that_wait(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.pause()
        job = await queue.add("send", {})
    with healthy.client() as client:
        client.hset(KEYS.job(job.id), "timestamp", int(time.time() * 1000) - 600_000)
    assert "paused" in only(await diagnosed(healthy.url), "neglected").message


async def test_it_finds_stream_entries_that_are_not_acknowledged(healthy: Server) -> None:
    async with StreamQueue("jobs.b", redis=healthy.url) as queue:
        await queue.add("work", {})
        with healthy.client() as client:
            client.xgroup_create(queue.keys.stream, queue.keys.consumer_group, id="0")
            client.xreadgroup(queue.keys.consumer_group, "dead", {queue.keys.stream: ">"})
    assert "never acknowledged" in only(await diagnosed(healthy.url), "stuck").message


async def test_a_key_of_another_type_is_a_finding_and_hides_nothing(healthy: Server) -> None:
    async with Queue(QUEUE, redis=healthy.url) as queue:
        await queue.add("send", {})
    with healthy.client() as client:
        client.set("bull:broken:wait", "text")
        client.hset("bull:broken:meta", "version", "bullmq:5.62.0")
    diagnosis = await diagnosed(healthy.url)
    assert only(diagnosis, "queues").queue == "broken"
    assert diagnosis.queues == 2


# --- the rules that it prints -------------------------------------------------------------------------------


async def test_a_user_with_the_printed_rules_can_run_queues_and_workers_of_all_kinds(healthy: Server) -> None:
    line = acl_rules("toril", password="secret-pw")
    with healthy.client() as client:
        client.execute_command("ACL", "SETUSER", *line.split()[1:])
    url = f"redis://toril:secret-pw@127.0.0.1:{healthy.port}"
    attempts: list[str] = []

    async def handle(job: Any) -> str:
        attempts.append(getattr(job, "id", None) or job.job_id)
        if isinstance(job, Job):
            await job.log("a line")
            await job.update_progress(10)
            if job.name == "fail":
                raise ConnectionError("again")
        return "done"

    async with (
        Queue(QUEUE, redis=url) as queue,
        ListQueue("gen", redis=url) as listed,
        StreamQueue("jobs.b", redis=url) as stream,
    ):
        await queue.add_bulk([("send", {})] * 20)
        await queue.add("send", {}, priority=3)
        await queue.add("send", {}, delay=0.1)
        await queue.add("fail", {}, attempts=2, backoff=0.05)
        await listed.add("work", {}, delay=0.05)
        await stream.add_bulk([("work", {})] * 5)
        workers = (
            Worker(QUEUE, handle, redis=url, concurrency=5, lock_duration=0.4, stalled_check_interval=0.2),
            ListWorker("gen", handle, redis=url, reliable=True, lock_duration=0.4),
            StreamWorker("jobs.b", handle, redis=url, lock_duration=0.4),
        )
        for worker in workers:
            async with worker:
                await worker.run_until_idle()
        counts = await queue.get_job_counts()
        assert (counts.completed + counts.delayed, counts.failed) == (22, 1)
        await queue.pause()
        await queue.resume()
        await queue.retry_jobs()
        await queue.clean()
        await queue.get_workers()
        assert (await stream.counts()).pending == 0
        diagnosis = await diagnosed(url)
        assert not [one for one in diagnosis.findings if one.check == "rights" and one.level != "ok"]
        await queue.obliterate(force=True)


async def test_the_printed_rules_allow_nothing_else(healthy: Server) -> None:
    line = acl_rules("toril", password="secret-pw")
    with healthy.client() as client:
        client.execute_command("ACL", "SETUSER", *line.split()[1:])
    with redis.Redis(port=healthy.port, username="toril", password="secret-pw") as poor:
        for words in (
            ("FLUSHALL",),
            ("CONFIG", "GET", "*"),
            ("KEYS", "*"),
            ("SHUTDOWN",),
            ("GET", "other:key"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError):
                poor.execute_command(*words)
