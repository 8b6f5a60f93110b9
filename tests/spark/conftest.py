"""One Spark session for all tests of this folder, and a factory on a real server."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.places import JAVA
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.session import build_session, own_session

TIME_FOR_SPARK = 240  # seconds: a test of a whole pipeline starts many small Spark jobs on shared cores


# Small data and short lives: compiling plans and code well costs more than it brings.
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.sql.codegen.wholeStage": "false",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark" in str(item.fspath) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIME_FOR_SPARK))


@pytest.fixture(autouse=True)
def _threads_end() -> Iterator[None]:
    """As everywhere, but py4j keeps a thread for each connection of the JVM, which ends with the session."""
    before = set(threading.enumerate())
    yield
    left = [one for one in threading.enumerate() if one not in before and not _is_py4j(one)]
    for one in left:
        one.join(timeout=3)
    assert not [one for one in left if one.is_alive()]


def _is_py4j(thread: threading.Thread) -> bool:
    owner = getattr(getattr(thread, "_target", None), "__self__", thread)
    return type(owner).__module__.startswith("py4j")


@pytest.fixture(scope="session")
def base_session() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = build_session("local[2]", spark_log=False, **SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark(base_session: SparkSession) -> SparkSession:
    """The session of all tests, with our formats registered."""
    return own_session(base_session)


@pytest.fixture
def factory(valkey: Server, prefix: str) -> Iterator[Callable[..., Factory]]:
    """Makes factories: `factory("emails")`."""
    with ExitStack() as stack:
        yield lambda queue, **settings: stack.enter_context(Factory(valkey.url, queue, prefix, **settings))


@pytest.fixture
def make_pipeline(
    valkey: Server, prefix: str, spark: SparkSession, tmp_path: Path
) -> Callable[..., Pipeline]:
    """Makes pipelines over this test's queues and lake; each call is like a new process on the same tables."""

    def make(**settings: Any) -> Pipeline:
        defaults: dict[str, Any] = {
            "redis": valkey.url,
            "prefix": prefix,
            "lake": tmp_path / "lake",
            "tasks": 2,
        }
        return Pipeline(PipelineOptions(**{**defaults, **settings}), spark=spark)

    return make
