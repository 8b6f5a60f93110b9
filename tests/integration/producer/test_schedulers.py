"""Jobs that come again: by a pattern or at an interval, kept going by whoever works."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.servers import Server, ValkeyCluster
from tests.waiting import until
from toril import Job, JobOptions, Queue, Worker, sync
from toril.backends._scheduler_runs import SchedulerRuns
from toril.backends.next_run import next_step
from toril.commands.command import plain
from toril.commands.schedulers import BrokenScheduler, broken_schedulers
from toril.errors import InvalidOption, JobBelongsToScheduler, RedisUnavailable
from toril.producer import Schedulers
from toril.protocol.keys import QueueKeys
from toril.protocol.options import Deduplication, ParentRef
from toril.protocol.record import JobRecord
from toril.protocol.state import JobState
from toril.sync.schedulers import Schedulers as BlockingSchedulers
from toril.telemetry.hooks import NoMetrics
from toril.transport import AsyncTransport, ConnectionPolicy


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("reports", redis=server_url, prefix=prefix) as opened:
        yield opened


async def test_a_pattern_makes_its_first_job_for_the_time_it_comes_true(queue: Queue) -> None:
    job = await queue.schedulers.upsert(
        "nightly", cron="0 3 * * *", tz="Europe/Zurich", name="report", data={"n": 1}
    )
    assert (job.name, job.data) == ("report", {"n": 1})
    assert await job.get_state() is JobState.DELAYED
    due = job.timestamp + timedelta(seconds=job.delay)
    assert (due.minute, due.second) == (0, 0)
    assert due.hour in (1, 2)  # three o'clock in Zurich
    found = await queue.schedulers.get("nightly")
    assert found is not None
    assert (found.cron, found.tz, found.every, found.name, found.data) == (
        "0 3 * * *",
        "Europe/Zurich",
        None,
        "report",
        {"n": 1},
    )
    assert found.next_run == due.replace(microsecond=0)
    assert job.id == f"repeat:nightly:{round(due.timestamp()) * 1000}"


async def test_an_interval_begins_at_once_and_goes_on(queue: Queue, server_url: str, prefix: str) -> None:
    runs: list[str] = []
    enough = asyncio.Event()

    async def handle(job: Job) -> None:
        runs.append(job.id)
        if len(runs) == 4:
            enough.set()

    first = await queue.schedulers.upsert(
        "tick", every=0.2, data={"n": 1}, options=JobOptions(remove_on_complete=True)
    )
    async with Worker("reports", handle, redis=server_url, prefix=prefix), asyncio.timeout(20):
        await enough.wait()
    times = [int(run.rpartition(":")[2]) for run in runs]
    assert runs[0] == first.id
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [200, 200, 200]
    found = await queue.schedulers.get("tick")
    assert found is not None
    assert found.runs >= 5
    assert (await queue.get_job_counts()).delayed + (await queue.get_job_counts()).waiting == 1


async def test_a_pattern_of_seconds_goes_on_without_doubles(
    queue: Queue, server_url: str, prefix: str
) -> None:
    runs: list[str] = []
    enough = asyncio.Event()

    async def handle(job: Job) -> None:
        runs.append(job.id)
        if len(runs) == 3:
            enough.set()

    await queue.schedulers.upsert("seconds", cron="* * * * * *")
    async with (
        Worker("reports", handle, redis=server_url, prefix=prefix, concurrency=3),
        Worker("reports", handle, redis=server_url, prefix=prefix, concurrency=3),
        asyncio.timeout(20),
    ):
        await enough.wait()
    assert len(set(runs)) == len(runs)
    times = [int(run.rpartition(":")[2]) for run in runs]
    assert all(time % 1000 == 0 for time in times)
    assert times == sorted(times)


async def test_a_series_ends_at_its_limit(queue: Queue, server_url: str, prefix: str) -> None:
    async def handle(job: Job) -> None:
        return None

    await queue.schedulers.upsert("thrice", every=0.05, limit=3)

    async def has_run_thrice() -> bool:
        return (await queue.get_job_counts()).completed >= 3

    async with Worker("reports", handle, redis=server_url, prefix=prefix) as worker, asyncio.timeout(20):
        await until(has_run_thrice, "three jobs of the series are completed")
        await worker.run_until_idle()
    counts = await queue.get_job_counts()
    assert (counts.completed, counts.unfinished) == (3, 0)


async def test_changing_a_scheduler_replaces_its_next_job(queue: Queue) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    await queue.schedulers.upsert("nightly", every=3600, start=tomorrow, data={"n": 1})
    job = await queue.schedulers.upsert("nightly", every=3600, start=tomorrow, data={"n": 2})
    assert [one.id for one in await queue.get_delayed()] == [job.id]
    assert job.data == {"n": 2}
    await queue.schedulers.upsert("nightly", cron="0 0 1 1 *", tz="UTC")
    (only,) = await queue.get_delayed()
    found = await queue.schedulers.get("nightly")
    assert found is not None
    assert (found.cron, found.every) == ("0 0 1 1 *", None)
    assert only.id.startswith("repeat:nightly:")


async def test_schedulers_are_listed_counted_and_removed(queue: Queue) -> None:
    later, sooner = timedelta(days=2) + datetime.now(UTC), timedelta(days=1) + datetime.now(UTC)
    await queue.schedulers.upsert("b", every=60, start=later)
    job = await queue.schedulers.upsert("a", every=30, start=sooner, limit=5, end=later)
    assert [one.id for one in await queue.schedulers.list()] == ["a", "b"]
    assert [one.id for one in await queue.schedulers.list(ascending=False)] == ["b", "a"]
    first = (await queue.schedulers.list())[0]
    assert (first.every, first.limit) == (30.0, 5)
    assert first.start is not None
    assert abs((first.start - sooner).total_seconds()) < 0.01
    assert await queue.schedulers.count() == 2
    with pytest.raises(JobBelongsToScheduler):
        await queue.remove(job.id)
    assert await queue.schedulers.remove("a")
    assert not await queue.schedulers.remove("a")
    assert await queue.schedulers.get("a") is None
    assert await queue.get_job(job.id) is None


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({}, "cron"),
        ({"cron": "* * * * *", "every": 5}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "tz"),
        ({"every": 0}, "every"),
        ({"every": 5, "limit": 0}, "limit"),
        ({"every": 5, "end": datetime(2020, 1, 1, tzinfo=UTC)}, "end"),
        (
            {"cron": "* * * * *", "immediately": True, "start": datetime(2100, 1, 1, tzinfo=UTC)},
            "immediately",
        ),
        ({"cron": "0 0 31 4,6 *"}, "cron"),
        ({"cron": "0 3 * *"}, "cron"),
    ],
)
async def test_a_schedule_that_makes_no_sense_is_refused(queue: Queue, arguments: Any, field: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        await queue.schedulers.upsert("x", **arguments)
    assert refused.value.field == field
    assert await queue.schedulers.count() == 0


OF_SINGLE_JOBS: dict[str, Any] = {
    "delay": 5,
    "job_id": "mine",
    "deduplication": Deduplication("same"),
    "parent": ParentRef("p", "bull:parents"),
    "timestamp": datetime(2025, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("name", OF_SINGLE_JOBS)
@pytest.mark.parametrize("kind", [dict, JobOptions])
async def test_options_that_its_jobs_would_not_have_are_refused_before_anything_is_sent(
    valkey: Server, prefix: str, name: str, kind: Any
) -> None:
    queue = Queue("reports", redis=valkey.url, prefix=prefix)
    with pytest.raises(InvalidOption) as refused:
        await queue.schedulers.upsert("x", every=5, options=kind(**{name: OF_SINGLE_JOBS[name]}))
    assert refused.value.field == f"options.{name}"
    await queue.close()
    with valkey.client() as client:
        assert client.keys(f"{prefix}:*") == []
    blocking = sync.Queue("reports", redis=valkey.url, prefix=prefix)
    with blocking, pytest.raises(InvalidOption, match=f"options.{name}"):
        blocking.schedulers.upsert("x", every=5, options={name: OF_SINGLE_JOBS[name]})


async def test_defaults_of_a_queue_for_single_jobs_do_not_reach_its_schedulers(
    server_url: str, prefix: str
) -> None:
    defaults = JobOptions(delay=60, deduplication=Deduplication.debounce("same", 30), attempts=7)
    async with Queue("reports", redis=server_url, prefix=prefix, defaults=defaults) as queue:
        job = await queue.schedulers.upsert("x", every=3600, options={"delay": 0, "priority": 3})
        found = await queue.schedulers.get("x")
    assert found is not None
    assert (found.options.attempts, found.options.priority) == (7, 3)
    assert (found.options.delay, found.options.deduplication) == (0, None)
    assert "de" not in job.opts
    assert job.max_attempts == 7


async def test_an_id_with_a_colon_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidOption):
        await queue.schedulers.upsert("a:b", every=5)


async def test_immediately_runs_a_pattern_now(queue: Queue) -> None:
    job = await queue.schedulers.upsert("x", cron="0 0 1 1 *", immediately=True)
    assert await job.get_state() in (JobState.WAITING, JobState.DELAYED)
    assert job.delay < 1


async def test_the_next_job_exists_while_the_last_one_still_runs(
    queue: Queue, server: Server, prefix: str
) -> None:
    go_on = asyncio.Event()

    async def handle(job: Job) -> None:
        await go_on.wait()

    first = await queue.schedulers.upsert("hourly", every=3600)
    async with Worker("reports", handle, redis=server.url, prefix=prefix) as worker, asyncio.timeout(20):
        delayed = await until(queue.get_delayed, "the next job is delayed")
        assert await first.is_active()
        assert delayed[0].id != first.id
        go_on.set()
        await first.wait_until_finished(10)
        await queue.schedulers.remove("hourly")
        await worker.run_until_idle()


class CountedFailures(NoMetrics):
    schedulers = 0

    def increment_scheduler_failures(self, queue: str) -> None:
        self.schedulers += 1


def damage(server: Server, queue: Queue, job_id: str, pattern: str = "Q Q * * *") -> None:
    """What a newer client might write: a pattern that this version cannot read, in the scheduler and in its job."""
    with server.client() as client:
        opts = json.loads(client.hget(queue.keys.job(job_id), "opts"))
        opts["repeat"]["pattern"] = pattern
        client.hset(queue.keys.job(job_id), "opts", json.dumps(opts))
        client.hset(f"{queue.keys.repeat}:x", "pattern", pattern)


async def gone_on(queue: Queue) -> Job:
    """The next job of the scheduler, once it is there."""
    async with asyncio.timeout(20):
        while not (delayed := await queue.get_delayed()):
            await asyncio.sleep(0.01)
    (job,) = delayed
    return job


async def noted(queue: Queue, url: str, count: int) -> list[BrokenScheduler]:
    """What is noted of broken schedulers, once it is so many."""
    async with AsyncTransport(url) as transport, asyncio.timeout(20):
        while len(found := await transport.run(broken_schedulers(queue.keys))) != count:
            await asyncio.sleep(0.01)
    return found


async def set_in_redis(queue: Queue, server: Server) -> None:
    with server.client() as client:
        client.hset(f"{queue.keys.repeat}:x", "pattern", "0 3 * * *")


async def set_by_the_api(queue: Queue, server: Server) -> None:
    await queue.schedulers.upsert("x", cron="0 3 * * *", data={"n": 1}, options={"attempts": 7})


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("repair", [set_in_redis, set_by_the_api])
async def test_a_scheduler_that_cannot_be_read_is_kept_and_goes_on_when_it_is_mended(
    queue: Queue,
    server: Server,
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    repair: Callable[..., Any],
    removed: bool,
) -> None:
    ran = asyncio.Event()

    async def handle(job: Job) -> None:
        ran.set()

    counted = CountedFailures()
    options = {"attempts": 7, "remove_on_complete": removed}
    job = await queue.schedulers.upsert(
        "x", cron="* * * * *", immediately=True, data={"n": 1}, options=options
    )
    damage(server, queue, job.id)
    worker = Worker(
        "reports", handle, redis=server.url, prefix=prefix, metrics=counted, stalled_check_interval=0.1
    )
    async with worker:
        await asyncio.wait_for(ran.wait(), 20)
        (note,) = await noted(queue, server.url, 1)
        assert (note.id, note.job_id) == ("x", job.id)
        assert counted.schedulers == 1
        assert "scheduler x of reports cannot go on" in caplog.text
        assert [one.id for one in await queue.schedulers.list()] == ["x"]
        assert await queue.get_delayed() == []
        await repair(queue, server)
        following = await gone_on(queue)
        await noted(queue, server.url, 0)
    assert (following.data, following.max_attempts) == ({"n": 1}, 7)
    assert following.timestamp + timedelta(seconds=following.delay) > job.timestamp
    assert following.id.startswith("repeat:x:")
    found = await queue.schedulers.get("x")
    assert found is not None
    assert found.cron == "0 3 * * *"
    with server.client() as client:
        assert client.exists(queue.keys.job(job.id)) == (not removed)


async def test_an_interval_that_the_server_cannot_read_is_noted_and_goes_on_when_it_is_mended(
    queue: Queue, server: Server, prefix: str
) -> None:
    async def handle(job: Job) -> None: ...

    job = await queue.schedulers.upsert("x", every=3600)
    with server.client() as client:
        opts = json.loads(client.hget(queue.keys.job(job.id), "opts"))
        opts["repeat"]["every"] = "soon"
        client.hset(queue.keys.job(job.id), "opts", json.dumps(opts))
        client.hset(f"{queue.keys.repeat}:x", "every", "soon")
    async with Worker("reports", handle, redis=server.url, prefix=prefix, stalled_check_interval=0.1):
        (note,) = await noted(queue, server.url, 1)
        (found,) = await queue.schedulers.list()
        with server.client() as client:
            client.hset(f"{queue.keys.repeat}:x", "every", "3600000")
        await gone_on(queue)
        await noted(queue, server.url, 0)
    assert (note.id, note.job_id, found.every) == ("x", job.id, None)


async def test_a_job_that_cannot_be_read_does_not_end_a_scheduler_that_can(
    queue: Queue, server: Server, prefix: str
) -> None:
    job = await queue.schedulers.upsert("x", every=3600, data={"n": 1}, options={"attempts": 7})
    with server.client() as client:
        client.hset(queue.keys.job(job.id), "opts", "{")

    async def handle(job: Job) -> None:
        """Never called: the job has no options."""

    async with Worker("reports", handle, redis=server.url, prefix=prefix, stalled_check_interval=0.1):
        following = await gone_on(queue)
    assert (following.data, following.max_attempts) == ({"n": 1}, 7)


async def test_a_scheduler_that_was_removed_while_it_was_broken_is_forgotten(
    queue: Queue, server: Server, prefix: str
) -> None:
    async def handle(job: Job) -> None:
        """Done."""

    job = await queue.schedulers.upsert("x", cron="* * * * *", immediately=True)
    damage(server, queue, job.id)
    async with Worker("reports", handle, redis=server.url, prefix=prefix, stalled_check_interval=0.1):
        await noted(queue, server.url, 1)
        await queue.schedulers.remove("x")
        assert await noted(queue, server.url, 0) == []
    assert await queue.schedulers.list() == []


async def test_a_broken_scheduler_goes_on_on_a_cluster(cluster: ValkeyCluster, prefix: str) -> None:
    async def handle(job: Job) -> None:
        """Done."""

    async with (
        Queue("reports", redis=cluster.url, prefix=prefix) as queue,
        AsyncTransport(cluster.url) as transport,
    ):
        job = await queue.schedulers.upsert("x", cron="* * * * *", immediately=True)
        opts = {**job.opts, "repeat": {**job.opts["repeat"], "pattern": "Q * * * *"}}
        await transport.run(plain(int, "HSET", queue.keys.job(job.id), "opts", json.dumps(opts)))
        await transport.run(plain(int, "HSET", f"{queue.keys.repeat}:x", "pattern", "Q * * * *"))
        worker = Worker("reports", handle, redis=cluster.url, prefix=prefix, stalled_check_interval=0.1)
        async with worker:
            await noted(queue, cluster.url, 1)
            await transport.run(plain(int, "HSET", f"{queue.keys.repeat}:x", "pattern", "0 3 * * *"))
            assert (await gone_on(queue)).id.startswith("repeat:x:")
        await queue.schedulers.remove("x")


async def test_a_series_goes_on_before_its_job_is_settled_when_the_server_was_away(
    queue: Queue, start_valkey: Callable[..., Server]
) -> None:
    job = await queue.schedulers.upsert("x", every=60)
    gone = start_valkey()
    policy = ConnectionPolicy(connect_timeout=0.3, reconnect_delay=0.01, call_attempts=1)
    async with AsyncTransport(gone.url, policy=policy) as transport:
        runs = SchedulerRuns(queue.keys, transport)
        gone.stop()
        runs.begin([job.record])
        assert runs
        with pytest.raises(RedisUnavailable):
            await runs.run_pending()
        gone.start()
        await runs.run_pending()  # the scheduler is not there: nothing is made, and nothing is left to do
        assert not runs


@pytest.mark.parametrize(
    "repeat",
    [
        {"pattern": "* * * * *", "limit": 1, "count": 1},
        {"pattern": "* * * * *", "endDate": 1},
        {"every": 1000, "endDate": "2020-01-01T00:00:00Z"},
        {"pattern": "0 0 1 1 *", "endDate": 1_700_000_100_000},
        None,
    ],
)
def test_a_series_that_is_over_has_no_next_step(prefix: str, repeat: Any) -> None:
    fields = {"name": "x", "rjk": "series", "opts": json.dumps({} if repeat is None else {"repeat": repeat})}
    record = JobRecord.from_mapping("repeat:series:1", fields)
    assert next_step(QueueKeys("reports", prefix), record, 1_700_000_000_000) is None


def test_a_job_of_no_series_and_one_of_the_oldest_kind_have_no_next_step(prefix: str) -> None:
    for fields in ({"name": "x"}, {"name": "x", "rjk": "name::::5000"}):
        record = JobRecord.from_mapping("1", fields)
        assert next_step(QueueKeys("reports", prefix), record, 1_700_000_000_000) is None


async def test_a_series_goes_on_on_a_cluster(cluster: ValkeyCluster, prefix: str) -> None:
    runs: list[str] = []
    enough = asyncio.Event()

    async def handle(job: Job) -> None:
        runs.append(job.id)
        if len(runs) == 3:
            enough.set()

    async with (
        Queue("reports", redis=cluster.url, prefix=prefix) as queue,
        Worker("reports", handle, redis=cluster.url, prefix=prefix),
        asyncio.timeout(30),
    ):
        await queue.schedulers.upsert("tick", every=0.2)
        await enough.wait()
        assert await queue.schedulers.remove("tick")
    assert len(set(runs)) == len(runs)


def test_schedulers_have_a_blocking_class_with_the_same_methods(valkey_url: str, prefix: str) -> None:
    for name in ("upsert", "get", "list", "remove", "count"):
        ours = inspect.signature(getattr(BlockingSchedulers, name)).parameters
        assert ours == inspect.signature(getattr(Schedulers, name)).parameters
    with sync.Queue("reports", redis=valkey_url, prefix=prefix) as queue:
        job = queue.schedulers.upsert("nightly", cron="0 3 * * *")
        assert job.get_state() is JobState.DELAYED
        assert queue.schedulers.get("nightly") == queue.schedulers.list()[0]
        assert queue.schedulers.count() == 1
        assert queue.schedulers.remove("nightly")
