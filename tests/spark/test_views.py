"""`toril pipeline views`: the rows of all tables, for DuckDB and for Spark SQL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
from pyspark.sql import SparkSession

import toril.spark
from tests.servers import Server
from tests.spark.makers import Factories
from toril.lake import TABLES, Lake
from toril.spark.pipeline import Pipeline, PipelineOptions


def filled_lake(valkey: Server, factory: Factories, lake: Path) -> Lake:
    queue = factory("it's")
    for _ in range(2):  # silver/jobs has superseded rows then
        queue.add(20)
        queue.work(fail=0.2, retry=0.3, limit=25)
        options = PipelineOptions(redis=valkey.url, prefix=queue.prefix, lake=lake, engine="driver")
        Pipeline(options).run_once()
    return Lake(lake)


def write_views(lake: Lake, folder: Path) -> dict[str, object]:
    words = ["--duckdb", str(folder / "l.duckdb"), "--spark", str(folder / "v.sql"), "--json"]
    command = [sys.executable, "-m", "toril.cli", "pipeline", "views", "--lake", lake.url, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_views_have_the_rows_of_the_tables(
    valkey: Server, factory: Factories, tmp_path: Path, spark: SparkSession
) -> None:
    lake = filled_lake(valkey, factory, tmp_path / "the lake's")
    assert len(write_views(lake, tmp_path)["views"]) == len(TABLES)  # type: ignore[arg-type]  # a list of JSON
    toril.spark.register(spark)
    statements = [one for one in (tmp_path / "v.sql").read_text().split(";\n") if one.strip()]
    assert len(statements) == len(lake.tables())
    for statement in statements:
        spark.sql(statement)
    with duckdb.connect(str(tmp_path / "l.duckdb"), read_only=True) as database:
        database.execute("set timezone = 'UTC'")
        for name, spec in TABLES.items():
            dotted = name.replace("/", ".")
            rows = database.sql(f"select * from {dotted} order by all")
            expected = lake.query(f"select * from {dotted} order by all")
            assert (rows.columns, rows.fetchall()) == (
                spec.schema.names,
                [tuple(row.values()) for row in expected.to_pylist()],
            )
            if name in lake.tables():
                assert spark.table(name.replace("/", "_")).count() == expected.num_rows
    assert lake.read("silver/jobs").num_rows == 40


def test_views_can_be_written_again_and_before_there_are_tables(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "empty")
    for _ in range(2):
        write_views(lake, tmp_path)
    with duckdb.connect(str(tmp_path / "l.duckdb"), read_only=True) as database:
        assert database.sql("select count(*) from gold.errors").fetchall() == [(0,)]
