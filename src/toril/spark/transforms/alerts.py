"""Alerts: where figures are beyond their thresholds, by rules in SQL.

Guarantee: a rule sees the tables by their short names and returns rows; one that fails names itself in the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from toril.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A question in SQL over `queue_minute`, `queue_hour`, `errors` and `workers`.

    It selects `queue`, `raised_at` and `value`, and may select `subject`; every row above `threshold` is an alert.
    """

    name: str
    sql: str
    threshold: float
    message: str  # {value} and {threshold} are replaced


# A minute with three jobs of which one was retried says nothing: rates count from here on.
_ENOUGH: Final = 10

DEFAULT_RULES: Final = (
    Rule(
        name="heartbeat_failures",
        sql="select queue, worker as subject, last_report_at as raised_at, heartbeat_failure_rate as value "
        "from workers",
        threshold=0.05,
        message="heartbeats fail: look at Redis latency and the network",
    ),
    Rule(
        name="stalled_jobs",
        sql=f"select queue, minute as raised_at, stall_rate as value from queue_minute where attempts >= {_ENOUGH}",
        threshold=0.10,
        message="many active jobs stall: look at worker stability and memory",
    ),
    Rule(
        name="retries",
        sql=f"select queue, minute as raised_at, retry_rate as value from queue_minute where attempts >= {_ENOUGH}",
        threshold=0.10,
        message="many jobs are retried: a service they need may be down",
    ),
    Rule(
        name="sweeps_skipped",
        sql="select queue, worker as subject, last_report_at as raised_at, sweep_skip_rate as value from workers",
        threshold=0.10,
        message="the stalled sweep is skipped: the active list is too large, split the queue",
    ),
)


def alerts(
    spark: SparkSession, tables: Mapping[str, DataFrame], rules: Sequence[Rule] = DEFAULT_RULES
) -> DataFrame:
    """Rows of gold/alerts."""
    names = {name: f"toril_{name}" for name in tables}
    for name, frame in tables.items():
        frame.createOrReplaceTempView(names[name])
    return reduce(DataFrame.unionByName, [_ask(spark, rule, tables) for rule in rules])


def _ask(spark: SparkSession, rule: Rule, tables: Mapping[str, DataFrame]) -> DataFrame:
    try:
        found = spark.sql(f"with {_definitions(tables)} {rule.sql}")
        subject = F.col("subject") if "subject" in found.columns else F.lit("")
        return found.where(F.col("value") > rule.threshold).select(
            F.lit(rule.name).alias("rule"),
            F.col("queue").cast("string"),
            subject.cast("string").alias("subject"),
            F.col("raised_at").cast("timestamp"),
            F.col("value").cast("double"),
            F.lit(float(rule.threshold)).alias("threshold"),
            F.lit(rule.message).alias("message"),
        )
    except PySparkException as error:
        problem = str(error).partition("\n")[0]
        raise InvalidOption(
            f"rule {rule.name}", problem, "select queue, raised_at and value (and subject)"
        ) from None


def _definitions(tables: Mapping[str, DataFrame]) -> str:
    return ", ".join(f"{name} as (select * from toril_{name})" for name in tables)
