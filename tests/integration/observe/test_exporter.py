"""The exporter: what it says is what the queues hold, at the cost of one pipelined read."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import Server, ValkeyCluster
from tests.waiting import until
from toril import ListQueue, ListWorker, Queue, StreamQueue, StreamWorker, Worker
from toril.http import HttpServer
from toril.observe.exporter import Exporter
from toril.transport import AsyncTransport
from toril.transport.discovery import find_queues

NAMES = {
    "bullmq_job_count",
    "bullmq_queue_length",
    "bullmq_queue_paused",
    "bullmq_oldest_waiting_seconds",
    "bullmq_dlq_depth",
    "bullmq_dlq_oldest_seconds",
    "bullmq_stream_lag",
    "bullmq_stream_pending",
    "bullmq_active_workers",
    "bullmq_redis_connection_status",
    "bullmq_exporter_up",
}


def parsed(text: bytes) -> dict[tuple[str, ...], float]:
    """(name, label values…) → value, read by the official parser."""
    return {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_every_queue_of_every_kind_is_counted_to_the_unit(server_url: str, prefix: str) -> None:
    async with (
        Queue("emails", redis=server_url, prefix=prefix) as queue,
        ListQueue("gen", redis=server_url, prefix=prefix) as listed,
        StreamQueue("jobs.b", redis=server_url, prefix=prefix) as stream,
        Exporter(server_url, prefix=prefix) as exporter,
    ):
        await queue.add_bulk([("send", {})] * 7)
        await queue.add("send", {}, priority=1)
        await queue.add("send", {}, delay=60)
        await listed.add_bulk([("work", {})] * 3)
        await stream.add_bulk([("work", {})] * 4)
        values = parsed(await exporter.scrape())
    assert {name for name, *_ in values} >= NAMES - {"bullmq_active_workers"}
    assert values["bullmq_job_count", "emails", "waiting"] == 7
    assert values["bullmq_job_count", "emails", "prioritized"] == 1
    assert values["bullmq_job_count", "emails", "delayed"] == 1
    assert values["bullmq_queue_length", "emails", "wait"] == 8
    assert values["bullmq_job_count", "list:gen", "waiting"] == 3
    assert values["bullmq_stream_lag", "stream:jobs.b"] == 4
    assert values["bullmq_exporter_up",] == 1


async def scraped_with(exporter: Exporter, figure: tuple[str, ...]) -> dict[tuple[str, ...], float]:
    """Returns the figures of the first scrape that has this one."""

    async def scraped() -> dict[tuple[str, ...], float] | None:
        values = parsed(await exporter.scrape())
        return values if figure in values else None

    values = await until(scraped, f"{figure} is scraped")
    assert values is not None
    return values


async def test_figures_follow_a_load_to_the_unit(server_url: str, prefix: str) -> None:
    async def handle(job: Any) -> None:
        if (getattr(job, "name", None) or job.task_type) == "fail":
            raise ValueError("no")

    async with (
        Queue("emails", redis=server_url, prefix=prefix) as queue,
        StreamQueue("jobs.b", redis=server_url, prefix=prefix) as stream,
        Exporter(server_url, prefix=prefix) as exporter,
    ):
        await queue.add_bulk([("send", {})] * 50 + [("fail", {})] * 5)
        await stream.add_bulk([("work", {})] * 20 + [("fail", {})] * 2)
        async with (
            Worker("emails", handle, redis=server_url, prefix=prefix, concurrency=5) as worker,
            StreamWorker("jobs.b", handle, redis=server_url, prefix=prefix, concurrency=5) as streaming,
        ):
            await worker.run_until_idle()
            await streaming.run_until_idle()
            values = await scraped_with(exporter, ("bullmq_active_workers", "emails", worker.id))
            assert values["bullmq_active_workers", "emails", worker.id] == 1
        counts = await queue.get_job_counts()
    assert values["bullmq_job_count", "emails", "completed"] == counts.completed == 50
    assert values["bullmq_dlq_depth", "emails"] == counts.failed == 5
    assert values["bullmq_dlq_depth", "stream:jobs.b"] == 2
    assert values["bullmq_dlq_oldest_seconds", "emails"] >= 0
    assert values["bullmq_envelope_jobs_total", "completed", "stream:jobs.b"] == 20
    assert values["bullmq_stream_pending", "stream:jobs.b"] == 0


async def test_the_oldest_waiting_job_is_as_old_as_it_is(valkey: Server, prefix: str) -> None:
    async with (
        Queue("emails", redis=valkey.url, prefix=prefix) as queue,
        Exporter(valkey.url, prefix=prefix) as exporter,
    ):
        job = await queue.add("send", {})
        await queue.add("send", {})
        with valkey.client() as client:
            client.hincrby(queue.keys.job(job.id), "timestamp", -120_000)
        age = parsed(await exporter.scrape())["bullmq_oldest_waiting_seconds", "emails"]
        assert 120 <= age < 150
        await queue.pause()
        assert parsed(await exporter.scrape())["bullmq_queue_paused", "emails"] == 1
        assert parsed(await exporter.scrape())["bullmq_oldest_waiting_seconds", "emails"] >= 120


async def test_a_scrape_is_one_pipelined_read_without_scan(valkey: Server, prefix: str) -> None:
    queues = [Queue(f"q{number}", redis=valkey.url, prefix=prefix) for number in range(20)]
    for queue in queues:
        async with queue:
            await queue.add("send", {})
    async with Exporter(valkey.url, prefix=prefix) as exporter:
        await exporter.scrape()
        with valkey.client() as client:
            before = calls(client)
            await exporter.scrape()
            after = calls(client)
    grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    assert grown.pop("info", 1) == 1, "our own look"
    assert grown["evalsha"] == 20 and grown["time"] == 1
    assert "scan" not in grown and "keys" not in grown


def calls(client: Any) -> dict[str, int]:
    found = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in found.items()}


async def test_new_queues_are_searched_for_beside_the_scrapes(valkey: Server, prefix: str) -> None:
    async with Exporter(valkey.url, prefix=prefix, search_every=0.001) as exporter:
        assert ("bullmq_queue_paused", "emails") not in parsed(await exporter.scrape())
        async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
            await queue.add("send", {})
        values = await scraped_with(exporter, ("bullmq_queue_paused", "emails"))
    assert values["bullmq_queue_paused", "emails"] == 0


async def test_an_exporter_that_serves_has_searched_before_the_first_scrape(
    valkey: Server, prefix: str
) -> None:
    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        await queue.add("send", {})
    async with Exporter(valkey.url, prefix=prefix) as exporter:
        await exporter.prepare()
        with valkey.client() as client:
            before = calls(client).get("scan", 0)
            values = parsed(await exporter.scrape())
            assert calls(client).get("scan", 0) == before
    assert values["bullmq_job_count", "emails", "waiting"] == 1


async def test_a_queue_in_both_layouts_has_a_series_for_each(valkey: Server, prefix: str) -> None:
    async with (
        Queue("emails", redis=valkey.url, prefix=prefix, hash_tag=False) as plain,
        Queue("emails", redis=valkey.url, prefix=prefix, hash_tag=True) as tagged,
    ):
        await plain.add("send", {})
        await tagged.add_bulk([("send", {})] * 2)
    async with Exporter(valkey.url, prefix=prefix) as exporter:
        text = (await exporter.scrape()).decode()
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)), "Prometheus refuses a scrape in which a series comes twice"
    values = parsed(text.encode())
    assert values["bullmq_job_count", "emails", "waiting"] == 1
    assert values["bullmq_job_count", "{emails}", "waiting"] == 2


async def test_named_queues_cost_no_search_at_all(valkey: Server, prefix: str) -> None:
    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        await queue.add("send", {})
    with valkey.client() as client:
        before = calls(client).get("scan", 0)
        async with Exporter(valkey.url, prefix=prefix, queues=["emails"]) as exporter:
            values = parsed(await exporter.scrape())
        assert calls(client).get("scan", 0) == before
    assert values["bullmq_job_count", "emails", "waiting"] == 1


async def test_a_server_that_goes_away_is_a_metric_and_comes_back(
    start_valkey: Callable[..., Server],
) -> None:
    server = start_valkey()
    async with Exporter(server.url) as exporter, exporter.http_server(port=0) as http_server:
        assert await scraped(http_server) == (200, 1)
        await asyncio.to_thread(server.stop)
        assert await scraped(http_server) == (200, 0)
        server.start()
        assert await scraped(http_server) == (200, 1)


async def scraped(http_server: HttpServer) -> tuple[int, float]:
    def get() -> tuple[int, bytes]:
        with urllib.request.urlopen(f"{http_server.url}/metrics", timeout=20) as answer:
            return answer.status, answer.read()

    code, body = await asyncio.to_thread(get)
    return code, parsed(body)["bullmq_exporter_up",]


async def test_queues_of_a_cluster_are_found_on_all_nodes(cluster: ValkeyCluster, prefix: str) -> None:
    for name in ("alpha", "beta", "gamma", "delta"):
        async with Queue(name, redis=cluster.url, prefix=prefix) as queue:
            await queue.add("send", {})
    async with AsyncTransport(cluster.url) as transport:
        found = await find_queues(transport, prefix=prefix)
    assert sorted(one.name for one in found) == ["alpha", "beta", "delta", "gamma"]
    async with Exporter(cluster.url, prefix=prefix) as exporter:
        values = parsed(await exporter.scrape())
    assert values["bullmq_job_count", "beta", "waiting"] == 1


async def test_a_list_worker_with_reliable_pickup_reports_its_running_jobs(
    valkey: Server, prefix: str
) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(_: object) -> None:
        started.set()
        await release.wait()

    async with (
        ListQueue("gen", redis=valkey.url, prefix=prefix) as queue,
        Exporter(valkey.url, prefix=prefix) as exporter,
    ):
        await queue.add_bulk([("work", {})] * 2)
        async with ListWorker("gen", handle, redis=valkey.url, prefix=prefix, reliable=True):
            await asyncio.wait_for(started.wait(), 10)
            values = parsed(await exporter.scrape())
            assert values["bullmq_job_count", "list:gen", "active"] == 1
            assert values["bullmq_oldest_waiting_seconds", "list:gen"] >= 0
            release.set()


# --- the web server for machines ----------------------------------------------------------------------------


async def test_more_queues_than_the_limit_are_left_out_and_counted(
    valkey: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with valkey.client() as client:
        for number in range(30):
            client.hset(f"{prefix}:q{number:02}:meta", "version", "bullmq:5.0.0")
    async with Exporter(valkey.url, prefix=prefix, max_queues=10) as exporter:
        body = await exporter.scrape()
        assert parsed(body)["bullmq_exporter_left_out_queues",] == 20
        assert body.count(b"bullmq_queue_paused{") == 10
    assert "20 of 30 queues are not exported" in caplog.text
