"""A run that finds nothing new: it imports neither Spark nor pyarrow, and notices everything that is new."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.makers import Factories
from toril import sync
from toril.commands.locks import report_worker
from toril.errors import LakeError
from toril.lake import TABLES, Lake
from toril.lake.marked_log import LocalLogs
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.up_to_date import is_up_to_date

HEAVY = ("pyarrow", "pyspark", "pandas", "numpy", "deltalake", "duckdb", "rich")


class Place:
    """A lake that has all that is in its queues: events, and entries of a stream."""

    def __init__(self, url: str, lake: Path, queue: Factory) -> None:
        self.url, self.lake, self.queue = url, lake, queue
        self.add_entry("stream")
        for _ in range(2):
            queue.add(10)
            queue.work(fail=0.2, retry=0.2)
            self.pipeline().run_once()

    def pipeline(self) -> Pipeline:
        prefix = self.queue.prefix
        options = PipelineOptions(
            redis=self.url, prefix=prefix, stream_prefix=prefix, lake=self.lake, engine="driver"
        )
        return Pipeline(options)

    def is_up_to_date(self) -> bool:
        return is_up_to_date(self.pipeline()._context)

    def add_entry(self, kind: str) -> None:
        kinds = {"stream": sync.StreamQueue, "list": sync.ListQueue}
        with kinds[kind](f"entries-{kind}", redis=self.url, prefix=self.queue.prefix) as queue:
            queue.add("send", {"n": 1})

    def add_event(self) -> None:
        self.queue.add(1)

    def report_worker(self) -> None:
        now = self.queue.transport.now_ms()
        text = json.dumps({"at": now, "jobs": 1}).encode()
        self.queue.transport.run_many(
            report_worker(self.queue.keys, "w-1", text, now_ms=now, expire_ms=3_600_000)
        )

    def begin_events_anew(self) -> None:
        with sync.Queue(self.queue.queue, redis=self.url, prefix=self.queue.prefix) as jobs:
            jobs.obliterate(force=True)
        self.queue.add(1)

    def commit(self, table: str, **marks: int) -> None:
        log = Lake(self.lake).table(table)
        log.commit([], application="toril.test", version=log.version + 1, marks=marks)


@pytest.fixture
def place(valkey: Server, tmp_path: Path, factory: Factories) -> Place:
    return Place(valkey.url, tmp_path / "lake", factory("watched"))


def test_a_run_with_nothing_new_imports_neither_spark_nor_arrow(place: Place) -> None:
    words = ["pipeline", "run", "--lake", str(place.lake), "--redis", place.url]
    prefix = ["--prefix", place.queue.prefix, "--stream-prefix", place.queue.prefix, "--json"]
    program = f"""
import sys
from toril.cli._app import run
code = run({[*words, *prefix]!r})
print([name for name in {HEAVY!r} if name in sys.modules], code, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert done.stderr.splitlines()[-1] == "[] 0"
    summary = json.loads(done.stdout)
    assert (summary["events"], summary["steps"]) == (0, {})


def test_a_lake_that_a_run_has_filled_is_up_to_date_until_something_comes(place: Place) -> None:
    assert place.is_up_to_date()
    place.add_event()
    assert not place.is_up_to_date()
    summary = place.pipeline().run_once()
    assert (summary.events, place.is_up_to_date()) == (2, True)


NEW: dict[str, Callable[[Place], object]] = {
    "an event": Place.add_event,
    "events of a stream that began anew": Place.begin_events_anew,
    "a report of a worker": Place.report_worker,
    "an entry of a stream": lambda place: place.add_entry("stream"),
    "an element of a list": lambda place: place.add_entry("list"),
    "a commit of events without hashes": lambda place: place.commit("bronze/events"),
    "hashes that are not refined": lambda place: place.commit("bronze/jobs", **{"toril.hashes": 99}),
    "a gap whose jobs are not read": lambda place: place.commit("bronze/jobs", **{"toril.gaps": 99}),
    "a refinement that was cut off": lambda place: place.commit(
        "silver/attempts", **{"toril.refine.hashes": 99}
    ),
    "attempts without figures": lambda place: place.commit("silver/attempts"),
    "reports without figures": lambda place: place.commit("bronze/worker_reports"),
    "figures without alerts": lambda place: place.commit("gold/alerts", **{"toril.gold.alerts": 0}),
    "a table that is gone": lambda place: shutil.rmtree(place.lake / "gold" / "errors"),
}


@pytest.mark.parametrize("what", NEW)
def test_whatever_is_new_is_noticed(place: Place, what: str) -> None:
    NEW[what](place)
    assert not place.is_up_to_date()


def test_a_table_that_was_replaced_by_an_old_copy_is_noticed_by_the_run(place: Place) -> None:
    commits = sorted((place.lake / "silver/attempts/_delta_log").glob("*.json"))
    commits[-1].unlink()
    with pytest.raises(LakeError, match="silver/attempts"):
        place.pipeline().run_once()


def test_marks_read_as_text_are_those_that_delta_reads(place: Place) -> None:
    logs, lake = LocalLogs(str(place.lake)), Lake(place.lake)
    names = lake.tables()
    assert set(names) <= set(TABLES) and "gold/alerts" in names
    for name in names:
        log, table = logs.table(name), lake.table(name)
        marks = table.changes(-1, table.version).marks
        assert (log.version, {one: log.committed(one) for one in marks}) == (table.version, marks)
        assert log.committed("nobody") == table.committed("nobody") == -1
        assert log.commit_time(log.version) == table.commit_time(table.version)


def test_a_log_that_was_shortened_is_left_to_the_run(place: Place) -> None:
    """As delta does after a checkpoint: what the removed commits brought is no longer to be read as text."""
    Lake(place.lake).table("bronze/jobs").delta.create_checkpoint()
    for commit in sorted((place.lake / "bronze/jobs/_delta_log").glob("*.json"))[:2]:
        commit.unlink()
    assert not place.is_up_to_date()
    assert place.pipeline().run_once().events == 0
