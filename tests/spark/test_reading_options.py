"""Reading with `format("toril")`: jobs by id, lost events as errors, tables of a lake, tasks by cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.servers import Server
from tests.spark.makers import Factories
from toril.errors import EventsLost, InvalidOption
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.sources.lake_reader import LakeOptions
from toril.spark.sources.options import SourceOptions
from toril.spark.sources.readers import _rows_of_a_task


@pytest.fixture
def read(spark: SparkSession, valkey: Server, prefix: str) -> Any:
    def load(**options: str) -> DataFrame:
        return spark.read.format("toril").options(url=valkey.url, prefix=prefix, **options).load()

    return load


def test_jobs_by_id_are_read_and_no_others(read: Any, factory: Factories) -> None:
    queue = factory("named")
    ids = queue.add(30)
    queue.work(limit=10)
    rows = read(table="jobs", queues="named", ids=f"{ids[0]},{ids[20]},nobody").collect()
    assert {(row.job_id, row.state) for row in rows} == {(ids[0], "completed"), (ids[20], "waiting")}
    assert read(table="jobs", queues="named", ids=ids[0], states="failed").count() == 0


def test_ids_beside_times_are_refused() -> None:
    with pytest.raises(InvalidOption, match="finished_at"):
        SourceOptions.parse({"table": "jobs", "ids": "a", "since": "5"})
    with pytest.raises(InvalidOption, match="on_gap"):
        SourceOptions.parse({"on_gap": "ignore"})


def test_lost_events_are_an_error_on_request(read: Any, factory: Factories, valkey: Server) -> None:
    queue = factory("lost")
    queue.add(20)
    assert read(queues="lost", on_gap="fail").count() == queue.entries_added
    with valkey.client() as client:
        client.xtrim(queue.keys.events, maxlen=5, approximate=False)
    assert read(queues="lost").where("event = 'toril.gap'").count() == 1
    with pytest.raises(Exception, match="events of 'lost' were trimmed before they were read"):
        read(queues="lost", on_gap="fail").count()


def test_the_error_of_lost_events_can_be_sent_between_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(EventsLost("emails", 7)))
    assert (error.queue, error.lost) == ("emails", 7)


def test_tables_of_a_lake_are_read_by_spark(
    spark: SparkSession, factory: Factories, valkey: Server, tmp_path: Path
) -> None:
    queue = factory("lake")
    lake = tmp_path / "lake"
    pipeline = Pipeline(PipelineOptions(redis=valkey.url, prefix=queue.prefix, lake=lake, engine="driver"))
    for _ in range(2):
        queue.add(10)
        queue.work(fail=0.3, retry=0.3)
        pipeline.run_once()
    for name in pipeline.lake.tables():
        found = spark.read.format("toril").options(lake=str(lake), table=name.replace("/", ".")).load()
        expected = pipeline.lake.read(name)
        assert found.columns == expected.column_names
        assert sorted(map(repr, found.toArrow().to_pylist())) == sorted(map(repr, expected.to_pylist())), name
    spark.sql(f"create temporary view tried using toril options (lake '{lake}', table 'silver.attempts')")
    (row,) = spark.sql("select count(*) as n from tried where outcome = 'completed'").collect()
    assert row.n == queue.outcomes["completed"]


@pytest.mark.parametrize("option", ["table", "columns", "url"])
def test_options_that_a_lake_does_not_know_are_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match="one of"):
        LakeOptions.parse({"lake": "./lake", "table": "silver.jobs", option: "nope"})


def test_rows_are_shared_by_the_cores_of_the_machine() -> None:
    cores = os.cpu_count() or 1
    assert _rows_of_a_task(1_000_000 * cores, 250_000) == 250_000
    assert _rows_of_a_task(100_000 * cores, 250_000) == 100_000
    assert _rows_of_a_task(100, 250_000) == 20_000
