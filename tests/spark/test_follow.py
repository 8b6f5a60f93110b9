"""Ingest of a pipeline that is up: by the driver itself, on a thread of its own, without Spark."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.makers import Factories
from toril.lake import Lake
from toril.lake.delta_table import LakeTable
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.bronze.ingest import _COMMITTING
from toril.spark.pipeline.bronze.query_ingest import QueryIngest
from toril.spark.pipeline.supervisor.supervisor import IngestService, SparkWatch, Step, Supervisor
from toril.spark.sources.positions import read_stream_states

Pipelines = Callable[..., Pipeline]


@pytest.fixture
def make(valkey: Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipelines:
    """Makes pipelines for which Spark cannot start."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")

    def make(**settings: Any) -> Pipeline:
        words = {"redis": valkey.url, "prefix": prefix, "lake": tmp_path, "interval": 0.05, **settings}
        return Pipeline(PipelineOptions(**words))

    return make


@contextmanager
def ingesting(pipeline: Pipeline) -> Iterator[IngestService]:
    service = IngestService(pipeline.new_ingest(), SparkWatch(pipeline))
    service.start()
    try:
        yield service
    finally:
        service.stop()


def stored(pipeline: Pipeline) -> dict[str, int]:
    sql = "select count(*) filter (lost is null) as n, count(distinct id) as ids, coalesce(sum(lost), 0)::int as lost"
    return dict(Lake(pipeline.lake.url).query(f"{sql} from bronze.events").to_pylist()[0])


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        pause.wait(0.02)


def await_all(pipeline: Pipeline, queue: Factory) -> None:
    wait_for(lambda: stored(pipeline)["n"] >= queue.entries_added)
    assert stored(pipeline) == {"n": queue.entries_added, "ids": queue.entries_added, "lost": 0}


def test_events_are_stored_without_spark_and_once_after_a_restart(
    make: Pipelines, factory: Factories
) -> None:
    queue = factory("followed")
    queue.add(30)
    for _ in range(2):
        pipeline = make()
        with ingesting(pipeline):
            await_all(pipeline, queue)
            queue.add(20)
            queue.work(retry=0.2)
            await_all(pipeline, queue)
        queue.add(10)
    assert not pipeline._context.sessions.is_there


def test_what_is_trimmed_while_commits_fail_is_not_lost(
    make: Pipelines, factory: Factories, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = factory("held")
    queue.add(5)
    pipeline = make()
    real, failing, refused = LakeTable.commit, threading.Event(), threading.Event()

    def commit(self: LakeTable, *words: Any, **more: Any) -> None:
        if failing.is_set():
            refused.set()
            raise CommitFailedError("the disk is full")
        real(self, *words, **more)

    monkeypatch.setattr(LakeTable, "commit", commit)
    with ingesting(pipeline) as service:
        await_all(pipeline, queue)
        failing.set()
        queue.add(40)
        assert refused.wait(30)
        wait_for(lambda: _is_read_ahead(service, queue))
        with valkey.client() as client:
            client.xtrim(queue.keys.events, maxlen=0, approximate=False)
        assert service.error == "CommitFailedError: the disk is full" or "disk is full" in (
            service.error or ""
        )
        failing.clear()
        await_all(pipeline, queue)
        wait_for(lambda: service.error is None)


def _is_read_ahead(service: Any, queue: Factory) -> bool:
    held = service.ingest._ahead._held[queue.queue]
    return bool(held.rows) and held.until == _last_id(queue)


def _last_id(queue: Factory) -> str:

    return read_stream_states(queue.transport, {queue.queue: queue.keys.events})[queue.queue].last_id


def test_ingest_that_fails_is_started_again_while_a_step_is_at_work(
    make: Pipelines, factory: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = factory("beside")
    queue.add(5)
    pipeline = make()
    at_work, release, stop = threading.Event(), threading.Event(), threading.Event()
    real, failures = LakeTable.commit, iter(range(2))

    def fail_twice(self: LakeTable, *words: Any, **more: Any) -> None:
        if at_work.is_set() and next(failures, None) is not None:
            raise CommitFailedError("not now")
        real(self, *words, **more)

    def long_step() -> None:
        at_work.set()
        release.wait(60)

    monkeypatch.setattr(LakeTable, "commit", fail_twice)
    supervisor = Supervisor(pipeline, [Step("long", 3600.0, long_step)], stop)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        assert at_work.wait(30)
        queue.add(20)
        await_all(pipeline, queue)
        assert not release.is_set()
        assert supervisor.progress().restarts >= 1
    finally:
        release.set()
        stop.set()
        thread.join()


def test_a_queue_that_is_new_is_followed_within_seconds(make: Pipelines, factory: Factories) -> None:
    """BullMQ keeps some five seconds of events of a queue with 500 jobs a second."""
    first = factory("first")
    first.add(1)
    pipeline = make(discover_every=0.1)
    with ingesting(pipeline):
        await_all(pipeline, first)
        second = factory("second")
        second.add(5)
        wait_for(lambda: stored(pipeline)["n"] >= first.entries_added + second.entries_added)
    found = stored(pipeline)
    assert (found["n"], found["lost"]) == (first.entries_added + second.entries_added, 0)


class Dying:
    """A pipeline without queues whose Spark dies during the first run of a step."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.new_ingest = pipeline.new_ingest
        self.deaths: list[str] = []

    def drop_dead_spark(self) -> str | None:
        return self.deaths.pop() if self.deaths else None


def test_a_step_that_the_death_of_spark_cut_off_comes_again_at_once(
    make: Pipelines, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline, stop, runs = Dying(make()), threading.Event(), []

    def step() -> None:
        runs.append(1)
        if len(runs) == 1:
            pipeline.deaths.append("Spark's Java process (pid 7) was ended by SIGKILL")
            raise ConnectionRefusedError("connection refused")
        stop.set()

    with caplog.at_level(logging.WARNING, logger="toril.pipeline"):
        Supervisor(pipeline, [Step("refine", 3600.0, step)], stop).run()
    assert len(runs) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "Spark's Java process (pid 7) was ended by SIGKILL; another is started, and ingest goes on meanwhile"
    ]


def test_two_pipelines_that_follow_the_same_queue_store_each_event_once(
    make: Pipelines, factory: Factories
) -> None:
    queue = factory("both")
    first, second = make(), make()
    with ingesting(first), ingesting(second):
        for _ in range(10):
            queue.add(5)
            queue.work()
        await_all(first, queue)
    found = stored(first)
    assert (found["n"], found["lost"]) == (queue.entries_added, 0)


def test_reading_that_begins_with_the_latest_does_so_while_it_is_up(
    make: Pipelines, factory: Factories
) -> None:
    queue = factory("late")
    queue.add(10)
    before = queue.entries_added
    pipeline = make(starting="latest")
    with ingesting(pipeline) as service:
        wait_for(lambda: service.ingest._ahead is not None and queue.queue in service.ingest._ahead._held)  # type: ignore[attr-defined]
        queue.add(4)
        wait_for(lambda: stored(pipeline)["n"] >= queue.entries_added - before)
    assert stored(pipeline) == {"n": 8, "ids": 8, "lost": 0}


# --- with a checkpoint, the follower reads in place of the query -------------------------------------------------


def test_events_that_are_trimmed_while_spark_starts_are_stored_and_the_query_goes_on(
    factory: Factories,
    valkey: Server,
    make_pipeline: Pipelines,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = factory("substituted")
    pipeline = make_pipeline(checkpoint=str(tmp_path / "checkpoint"), interval=0.05)
    ingest = pipeline.new_ingest()
    assert isinstance(ingest, QueryIngest)
    sessions = pipeline._context.sessions
    start = sessions.session

    def start_late() -> Any:
        """Spark is there when all events were stored and trimmed, twice."""
        for _ in range(2):
            queue.add(20)
            queue.work(retry=0.2)
            await_all(pipeline, queue)
            with valkey.client() as client:
                client.xtrim(queue.keys.events, maxlen=0, approximate=False)
        monkeypatch.setattr(sessions, "session", start)
        return start()

    monkeypatch.setattr(sessions, "session", start_late)
    service = IngestService(ingest, SparkWatch(pipeline))
    service.start()
    try:
        wait_for(lambda: ingest._listener.progress.batches > 0 or bool(queue.add(1)))
        queue.work()
        wait_for(lambda: ingest._substitute._thread is None)
        queue.add(20)
        await_all(pipeline, queue)
    finally:
        service.stop()
    assert service.error is None


def test_what_a_query_had_read_and_not_committed_when_it_ended_is_stored(
    factory: Factories, valkey: Server, make_pipeline: Pipelines, tmp_path: Path
) -> None:
    """The process that plans its batches ends with the query, and Redis has trimmed what it had read."""
    queue = factory("uncommitted")
    pipeline = make_pipeline(checkpoint=str(tmp_path / "checkpoint"), interval=0.05)
    ingest = pipeline.new_ingest()
    assert isinstance(ingest, QueryIngest)
    service = IngestService(ingest, SparkWatch(pipeline))
    service.start()
    try:
        wait_for(lambda: ingest._listener.progress.batches > 0 or bool(queue.add(1)))
        wait_for(lambda: ingest._substitute._thread is None)
        with _COMMITTING:  # no batch can be committed
            queue.add(20)
            ahead = ingest._substitute._follower._ahead
            assert ahead is not None
            wait_for(lambda: ahead._held[queue.queue].until == last_id(valkey, queue))
            with valkey.client() as client:
                client.xtrim(queue.keys.events, maxlen=0, approximate=False)
            queries = pipeline._context.sessions.session().streams.active
            ends = [threading.Thread(target=one.stop) for one in queries if one.name == "toril_ingest"]
            for end in ends:
                end.start()
        await_all(pipeline, queue)
        for end in ends:
            end.join()
    finally:
        service.stop()
    assert len(ends) == 1
    assert stored(pipeline)["lost"] == 0


def last_id(server: Server, queue: Factory) -> str:
    with server.client() as client:
        return str(client.xinfo_stream(queue.keys.events)["last-generated-id"].decode())


def test_a_query_adds_only_what_the_follower_has_not_stored_of_a_stream_that_was_deleted(
    factory: Factories, valkey: Server, make_pipeline: Pipelines, tmp_path: Path
) -> None:
    queue, checkpoint = factory("deleted"), str(tmp_path / "checkpoint")
    queue.add(40)
    make_pipeline(checkpoint=checkpoint).ingest()
    with valkey.client() as client:
        client.delete(queue.keys.events)
    queue.add(10)
    pipeline = make_pipeline()
    pipeline.ingest()  # as the follower does
    queue.add(5)
    make_pipeline(checkpoint=checkpoint).ingest()
    sql = "select count(*) filter (event = 'added') as n from bronze.events"
    (found,) = Lake(pipeline.lake.url).query(sql).to_pylist()
    assert found["n"] == 55
    gaps = (
        Lake(pipeline.lake.url).query("select lost from bronze.events where event = 'toril.gap'").to_pylist()
    )
    assert gaps == [{"lost": None}]  # the stream that was deleted, once
