"""A lake by URL: on a shared folder, and on an object store of its own for these tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from tests.servers import Server, free_port
from tests.spark.makers import Factories, Pipelines
from toril.lake import Lake
from toril.spark.pipeline import Pipeline, PipelineOptions


@pytest.fixture(scope="module")
def object_store() -> Iterator[Any]:
    """The endpoint of a store that speaks S3, in a process of its own."""
    port = free_port()
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "--", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await_port(port)
    yield f"http://127.0.0.1:{port}"
    server.kill()
    server.wait()


def await_port(port: Any) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise TimeoutError("the object store did not start")


@pytest.fixture(scope="module")
def storage(object_store: Any) -> Any:
    options = {
        "AWS_ACCESS_KEY_ID": "name",
        "AWS_SECRET_ACCESS_KEY": "0pen-sesame",
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": object_store,
        "AWS_ALLOW_HTTP": "true",
    }
    client = boto3.client(
        "s3",
        endpoint_url=object_store,
        region_name=options["AWS_REGION"],
        aws_access_key_id=options["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=options["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(
        Bucket="tables", CreateBucketConfiguration={"LocationConstraint": options["AWS_REGION"]}
    )
    client.close()
    return options


def outcomes(lake: Any) -> Any:
    rows = lake.query("select outcome, count(*)::int as n from silver.attempts group by all").to_pylist()
    return Counter({row["outcome"]: row["n"] for row in rows})


def test_a_pipeline_fills_goes_on_with_and_maintains_a_lake_on_s3(
    spark: SparkSession, valkey: Server, valkey_url: str, prefix: str, factory: Factories, storage: Any
) -> None:
    queue = factory("remote")
    queue.add(60)
    queue.work(fail=0.2, limit=40)
    options = PipelineOptions(
        redis=valkey_url,
        prefix=prefix,
        lake=f"s3://tables/{prefix}",
        storage_options=storage,
        keep_files_hours=0,
    )
    Pipeline(options, spark=spark).run_once()
    queue.work(fail=0.3)
    queue.add(10)
    with valkey.client() as client:
        client.xtrim(queue.keys.events, maxlen=5, approximate=False)
    pipeline = Pipeline(options, spark=spark)
    pipeline.run_once()
    lake = Lake(f"s3://tables/{prefix}", storage)
    assert outcomes(lake) == queue.outcomes
    (counted,) = lake.query("select count(id) as n, sum(lost) as lost from bronze.events").to_pylist()
    assert counted["n"] - 1 + counted["lost"] == queue.entries_added
    (figures,) = lake.query("select sum(attempts)::int as n from gold.queue_minute").to_pylist()
    assert figures["n"] == queue.outcomes.total()
    assert sum(one.removed for one in pipeline.maintain()) > 0
    assert outcomes(Lake(f"s3://tables/{prefix}", storage)) == queue.outcomes


def test_the_keys_of_a_store_show_neither_in_options_nor_in_plans(
    spark: SparkSession, valkey_url: str, prefix: str, factory: Factories, storage: Any
) -> None:
    factory("keys").add(1)
    options = PipelineOptions(
        redis=valkey_url, prefix=prefix, lake=f"s3://tables/{prefix}", storage_options=storage
    )
    pipeline = Pipeline(options, spark=spark)
    pipeline.ingest()
    stream = (
        pipeline.spark.readStream.format("toril_ingest").options(**pipeline._context.source_options()).load()
    )
    plan = stream._jdf.queryExecution().toString()
    assert "toril_ingest" in plan
    assert storage["AWS_SECRET_ACCESS_KEY"] not in f"{plan}{options}{pipeline.lake}"


def test_a_folder_may_be_given_as_a_url(make_pipeline: Pipelines, factory: Factories, tmp_path: Path) -> None:
    queue = factory("folder")
    queue.add(3)
    pipeline = make_pipeline(lake=f"file://{tmp_path}/shared/lake")
    pipeline.ingest()
    pipeline.refine()
    assert Lake(tmp_path / "shared" / "lake").query("select * from silver.jobs").num_rows == 3
