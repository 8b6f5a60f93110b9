"""Alerts: where figures are beyond their thresholds, by rules in SQL.

Guarantee: a rule sees the tables by their short names and returns rows; one that fails names itself in the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from toril.errors import InvalidOption
from toril.spark.transforms.rules import DEFAULT_RULES, Rule


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
