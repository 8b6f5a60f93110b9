"""`toril pipeline check`: planted faults are found, each with its remedy; a healthy lake has none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.makers import Factories
from toril import sync
from toril.lake import Lake, table_spec
from toril.observe.exporter import Exporter
from toril.spark.pipeline import Pipeline, PipelineOptions


class Place:
    """A lake that is up to date, and whoever damages it."""

    def __init__(self, url: str, lake: Path, queue: Factory) -> None:
        self.url, self.lake, self.queue = url, lake, queue
        for _ in range(2):
            queue.add(10)
            queue.work(fail=0.2, retry=0.2)
            self.pipeline().run_once()

    def pipeline(self) -> Pipeline:
        prefix = self.queue.prefix
        return Pipeline(PipelineOptions(redis=self.url, prefix=prefix, lake=self.lake, engine="driver"))

    def found(self) -> list[tuple[str, str]]:
        findings = self.pipeline().examine()
        assert all(one.remedy and one.problem for one in findings)
        return [(one.check, one.subject) for one in findings]

    def commits(self, table: str) -> list[Path]:
        return sorted((self.lake / table / "_delta_log").glob("*.json"))

    def remove_last_commit(self, table: str) -> None:
        self.commits(table)[-1].unlink()

    def remove_file(self, table: str) -> None:
        (self.lake / table / Lake(self.lake).table(table).files()[0].path).unlink()

    def add_rows(self, table: str) -> None:
        rows = [{"queue": "checked", "job_id": "foreign", "outcome": "completed"}]
        write_deltalake(
            self.lake / table, pa.Table.from_pylist(rows, schema=table_spec(table).schema), mode="append"
        )

    def delete_rows(self, table: str) -> None:
        DeltaTable(self.lake / table).delete("job_id = 'job-3'")

    def move_mark(self) -> None:
        log = Lake(self.lake).table("silver/attempts")
        log.commit([], application="toril.refine", version=99)

    def obliterate(self) -> None:
        with sync.Queue(self.queue.queue, redis=self.url, prefix=self.queue.prefix) as queue:
            queue.obliterate(force=True)


@pytest.fixture
def place(factory: Factories, valkey: Server, tmp_path: Path) -> Place:
    return Place(valkey.url, tmp_path / "lake", factory("checked"))


def test_a_healthy_lake_has_no_findings(place: Place) -> None:
    assert place.found() == []
    place.pipeline().maintain()
    assert place.found() == []


FAULTS: dict[str, tuple[Callable[[Place], object], set[tuple[str, str]]]] = {
    "last commit of bronze": (
        lambda place: place.remove_last_commit("bronze/events"),
        {("layers", "bronze/events")},
    ),
    "last commit of silver": (
        lambda place: place.remove_last_commit("silver/attempts"),
        {("layers", "silver/attempts")},
    ),
    "last commit of gold": (
        lambda place: place.remove_last_commit("gold/queue_minute"),
        {("layers", "gold/queue_minute")},
    ),
    "a commit in the middle": (
        lambda place: place.commits("bronze/events")[1].unlink(),
        {("log", "bronze/events")},
    ),
    "missing file": (lambda place: place.remove_file("silver/attempts"), {("files", "silver/attempts")}),
    "foreign rows": (lambda place: place.add_rows("silver/attempts"), {("rows", "silver/attempts")}),
    "rows removed by others": (lambda place: place.delete_rows("silver/jobs"), {("rows", "silver/jobs")}),
    "last commit of alerts": (
        lambda place: place.remove_last_commit("gold/alerts"),
        {("layers", "gold/alerts")},
    ),
    "mark ahead of its table": (Place.move_mark, {("layers", "bronze/events")}),
    "queue obliterated": (Place.obliterate, {("positions", "checked")}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(place: Place, fault: str) -> None:
    damage, expected = FAULTS[fault]
    damage(place)
    assert expected <= set(place.found())


def test_events_that_are_trimmed_before_they_are_read_are_found_before_and_after_a_run(
    place: Place, valkey: Server
) -> None:
    place.queue.add(10)
    with valkey.client() as client:
        client.xtrim(place.queue.keys.events, maxlen=3, approximate=False)
    assert place.found() == [("positions", "checked")]
    place.pipeline().run_once()
    assert place.found() == [("gaps", "checked")]


def test_gold_that_does_not_follow_from_silver_is_found(place: Place) -> None:
    log = Lake(place.lake).table("gold/queue_hour")
    marks = {"toril.gold": log.committed("toril.gold")}
    log.commit([], removed=log.files(), application="toril.gold", version=marks["toril.gold"])
    assert place.found() == [("figures", "gold/queue_hour")]


def test_the_command_prints_findings_and_ends_with_1(place: Place) -> None:
    words = ["--lake", str(place.lake), "--redis", place.url, "--prefix", place.queue.prefix]
    command = [sys.executable, "-m", "toril.cli", "pipeline", "check", *words]
    assert subprocess.run(command, capture_output=True).returncode == 0
    place.remove_file("gold/errors")
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert done.returncode == 1
    (finding,) = json.loads(done.stdout)
    assert (finding["check"], finding["subject"]) == ("files", "gold/errors")


async def test_the_exporter_serves_the_lag_of_a_lake(place: Place) -> None:
    place.queue.add(3)
    async with Exporter(place.url, prefix=place.queue.prefix, lake=str(place.lake)) as exporter:
        values = {
            (one.name, *one.labels.values()): one.value
            for family in await exporter.families()
            for one in family.samples
        }
    assert values["bullmq_pipeline_up",] == 1
    assert values["bullmq_pipeline_lag_events", "checked"] == place.pipeline().lag().queues[0].behind == 6
    assert 0 <= values["bullmq_pipeline_last_commit_age_seconds", "bronze/events"] < 600
    assert ("bullmq_pipeline_last_commit_age_seconds", "gold/queue_hour") in values


async def test_a_lake_that_cannot_be_read_is_a_metric(place: Place) -> None:
    for commit in place.commits("bronze/events"):
        commit.write_text("no log")
    async with Exporter(place.url, prefix=place.queue.prefix, lake=str(place.lake)) as exporter:
        families = {one.name: one for one in await exporter.families()}
    assert families["bullmq_pipeline_up"].samples[0].value == 0
    assert families["bullmq_exporter_up"].samples[0].value == 1
