"""The third part of the demo: tables from events, and jobs on Spark's executors.

Guarantee: without Java the tables are computed in this process, and only the jobs on executors are left out; without
the packages of the extra `spark`, both. What is left out has a reason with a remedy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toril import sync
from toril.cli._step_progress import step_progress
from toril.cli.demo._handlers import score
from toril.cli.demo._stream_part import ENV
from toril.errors import ExtraMissing, SparkUnavailable
from toril.protocol.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INFERENCE: Final = "inference"
MASTER: Final = "local[2,4]"  # two cores; a failed task is repeated
_SCHEMA: Final = "motion double, faces int"

_FIGURES: Final = """
    select queue, sum(attempts) attempts, sum(completed) completed, sum(failed) failed, sum(retried) retried,
           sum(stalled) stalled, max(wait_p95_ms) wait_p95_ms, max(run_p95_ms) run_p95_ms
    from gold.queue_minute group by queue order by attempts desc"""
_ERRORS: Final = """
    select queue, any_value(pattern) pattern, sum(count) as errors from gold.errors
    group by queue, fingerprint order by errors desc, queue limit 5"""
_ALERTS: Final = """
    select queue, rule, message, max(value) as value, max(threshold) as threshold from gold.alerts
    group by all order by queue, rule"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesPart:
    """What the pipeline did, and answers from its tables."""

    engine: str  # spark, or driver: computed in this process
    seconds: float
    events: int
    rows: dict[str, int]  # by table
    figures: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    alerts: list[dict[str, Any]]
    report: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPart:
    """What the worker on Spark did."""

    jobs: int
    completed: int
    seconds: float

    @property
    def as_planned(self) -> bool:
        return self.completed == self.jobs


def missing_packages() -> str:
    """Returns why no tables can be made; empty if they can."""
    try:
        require("spark", "deltalake", "duckdb", "pandas", "pyarrow", "pyspark")
    except ExtraMissing as missing:
        return str(missing)
    return ""


def missing_java() -> str:
    """Returns why Spark cannot start; empty if it can."""
    from toril.spark.pipeline.session import check_java

    try:
        check_java()
    except SparkUnavailable as missing:
        return str(missing)
    return ""


def start_spark() -> SparkSession:
    from toril.spark.pipeline.session import build_session

    return build_session(MASTER)


def make_tables(
    url: str, prefix: str, lake: Path, report: Path, spark: SparkSession | None, *, quiet: bool
) -> TablesPart:
    """Runs the pipeline, on Spark if there is a session, and asks its tables."""
    from toril.spark.pipeline import Pipeline, PipelineOptions

    engine = "driver" if spark is None else "spark"
    options = PipelineOptions(
        redis=url, prefix=prefix, stream_prefix=prefix, env=ENV, lake=str(lake), engine=engine
    )
    pipeline = Pipeline(options, spark=spark)
    with step_progress(quiet=quiet) as on_step:
        done = pipeline.run_once(on_step)
    return TablesPart(
        engine=engine,
        seconds=done.seconds,
        events=done.events,
        rows={one.table: one.rows for one in pipeline.status().tables},
        figures=pipeline.query(_FIGURES).to_pylist(),
        errors=pipeline.query(_ERRORS).to_pylist(),
        alerts=pipeline.query(_ALERTS).to_pylist(),
        report=str(pipeline.report(report)),
    )


def score_on_spark(url: str, prefix: str, spark: SparkSession, count: int) -> ScoredPart:
    """Adds jobs, and scores them as Arrow tables on the executors."""
    from toril.spark import SparkWorker

    videos = [("score", {"motion": number % 100 / 100, "faces": number % 5}) for number in range(count)]
    with sync.Queue(INFERENCE, redis=url, prefix=prefix) as queue:
        queue.add_bulk(videos)
        began = time.monotonic()
        worker = SparkWorker(
            INFERENCE, score, spark=spark, redis=url, prefix=prefix, data_schema=_SCHEMA, max_jobs=500
        )
        done = worker.run_once()
    return ScoredPart(jobs=count, completed=done.completed, seconds=time.monotonic() - began)


def remove_inference(url: str, prefix: str) -> None:
    """Removes the queue of the worker on Spark."""
    with sync.Queue(INFERENCE, redis=url, prefix=prefix) as queue:
        queue.obliterate(force=True)
