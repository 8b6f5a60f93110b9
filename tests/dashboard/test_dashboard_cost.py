"""What a page costs the server: round trips, bytes and commands, which do not grow with the number of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable

import pytest

from tests.dashboard.conftest import MakePerson, Person
from tests.dashboard.relay import relay_to
from tests.servers import Server
from toril import FlowNode, FlowProducer, Job, JobOptions, NewJob, PermanentError, Queue, Worker
from toril.dashboard import ServerOptions, _sources

MOST_ROUND_TRIPS = 3
MOST_BYTES = 256 * 1024
PAGES = (
    "/",
    "/queues/q-0",
    "/queues/q-0?state=waiting&limit=50",
    "/queues/q-0?state=delayed&limit=50",
    "/queues/q-0?state=failed&limit=50&order=oldest",
    "/queues/q-0/job?id={job}",
    "/workers",
    "/schedulers",
    "/flows",
    "/flows?root=q-0/{flow}",
    "/queues/q-0/job?id={flow}",
    "/operations",
    "/audit",
)


async def handle(job: Job) -> None:
    if job.name == "fail":
        raise PermanentError("no such user")


async def fill(url: str, prefix: str, jobs: int, queues: int = 1) -> str:
    """Adds jobs of three states to each queue; returns the id of one job of the first."""
    some_id = ""
    for number in range(queues):
        async with Queue(f"q-{number}", redis=url, prefix=prefix) as queue:
            await queue.add_bulk([("fail", {"n": n}) for n in range(60)])
            async with Worker(f"q-{number}", handle, redis=url, prefix=prefix, concurrency=50) as worker:
                await worker.run_until_idle()
            waiting = await queue.add_bulk([("send", {"to": f"user{n}@example.com"}) for n in range(jobs)])
            later = JobOptions(delay=3600)
            await queue.add_bulk([NewJob("later", {"n": n}, later) for n in range(jobs // 10)])
            await queue.schedulers.upsert("nightly", cron="0 3 * * *", name="report", data={})
            some_id = some_id or waiting[0].id
    return some_id


async def add_deep_flow(url: str) -> str:
    """Adds a flow of five levels; returns the id of the job at the top."""
    node = FlowNode("leaf", queue="q-0")
    for level in range(4):
        node = FlowNode(f"level-{level}", queue="q-0", children=[node, FlowNode("leaf", queue="q-0")])
    async with FlowProducer(redis=url) as flows:
        return (await flows.add(node)).job.id


async def seen_by_monitor(server: Server, step: Awaitable[None]) -> list[str]:
    """Returns the commands that the server ran meanwhile, those of scripts included."""
    with server.client() as client, client.monitor() as monitor:
        await step
        client.echo("the end of the step")
        seen: list[str] = []
        while "the end of the step" not in (command := monitor.next_command()["command"]):
            seen.append(command)
    return seen


async def load(person: Person, path: str) -> None:
    person.app.state.dashboard.sources.outdate()  # nothing is known from the page before
    await person.text(path)


@pytest.mark.timeout(180)
async def test_a_page_costs_the_same_for_a_thousand_and_for_twenty_thousand_jobs(
    person_with: MakePerson, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sources, "SEARCH_EVERY", 3600)
    costs: list[dict[str, Counter[str]]] = []
    for jobs in (1_000, 20_000):
        with Server.valkey() as server:
            job_id = await fill(server.url, "bull", jobs)
            flow_id = await add_deep_flow(server.url)
            person = await person_with(servers=[ServerOptions(redis=server.url)])
            await person.text("/")  # searches for queues, and loads scripts
            cost: dict[str, Counter[str]] = {}
            for path in (one.format(job=job_id, flow=flow_id) for one in PAGES):
                await load(person, path)
                seen = await seen_by_monitor(server, load(person, path))
                names = Counter(command.split()[0].upper() for command in seen)
                assert not {"SCAN", "KEYS"} & set(names), path
                assert not [one for one in seen if one.startswith("HGETALL") and job_id in one], path
                cost[path.replace(job_id, "JOB").replace(flow_id, "FLOW")] = names
            costs.append(cost)
            await person.app.state.dashboard.close()
    assert costs[0] == costs[1]
    assert sum(costs[0]["/queues/q-0?state=waiting&limit=50"].values()) > 50


@pytest.mark.timeout(180)
async def test_every_page_of_a_hundred_queues_takes_three_round_trips_at_most(
    person_with: MakePerson,
) -> None:
    with Server.valkey() as server:
        job_id = await fill(server.url, "bull", 200, queues=1)
        flow_id = await add_deep_flow(server.url)
        for number in range(1, 100):
            async with Queue(f"q-{number}", redis=server.url) as queue:
                await queue.add("send", {"n": number})
        async with relay_to(server) as relay:
            person = await person_with(servers=[ServerOptions(redis=relay.url)])
            assert (await person.text("/")).count("<tr data-row") == 100
            for path in (one.format(job=job_id, flow=flow_id) for one in PAGES):
                await load(person, path)
                person.app.state.dashboard.sources.all[0].rates._asked_at = -100.0  # BullMQ's minutes, too
                relay.reset()
                await load(person, path)
                assert 0 < relay.round_trips <= MOST_ROUND_TRIPS, path
                assert relay.bytes <= MOST_BYTES, path
            await person.app.state.dashboard.close()


async def test_a_page_of_large_jobs_reads_a_bounded_number_of_bytes(
    person_with: MakePerson, valkey: Server, prefix: str
) -> None:
    async with Queue("blobs", redis=valkey.url, prefix=prefix) as queue:
        jobs = await queue.add_bulk([("blob", {"text": "x" * 1_000_000}) for _ in range(50)])
    async with relay_to(valkey) as relay:
        person = await person_with(servers=[ServerOptions(redis=relay.url, prefix=prefix)])
        await person.text("/")
        for path in ("/queues/blobs?state=waiting", f"/queues/blobs/job?id={jobs[0].id}"):
            relay.reset()
            await load(person, path)
            assert relay.bytes <= MOST_BYTES, path
        await person.app.state.dashboard.close()


async def test_pages_of_one_moment_share_what_was_read(
    person_with: MakePerson, valkey: Server, prefix: str
) -> None:
    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        await queue.add("send", {})
    async with relay_to(valkey) as relay:
        person = await person_with(servers=[ServerOptions(redis=relay.url, prefix=prefix)], allow_writes=True)
        await person.text("/")
        person.app.state.dashboard.sources.all[0]._picture.at += 60  # it stays fresh
        relay.reset()
        pages = {await person.text("/") for _ in range(5)}
        assert (relay.round_trips, len(pages)) == (0, 1)
        await person.done("/queues/emails/act", {"act": "pause"})
        assert "❚❚ paused" in await person.text("/")  # a change is seen at once
        await person.app.state.dashboard.close()
