"""Adds the rows of a table as jobs, each once: a second run adds nothing.

python examples/enqueue_dataframe.py        # needs toril[spark,server], or toril[spark] and TORIL_REDIS_URL
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from toril.spark import register
from toril.spark.pipeline.session import build_session

PREFIX = os.environ.get("TORIL_PREFIX", "bull")


def main() -> None:
    spark = SparkSession.getActiveSession() or build_session()
    register(spark)
    users = spark.range(100).selectExpr(
        "id", "concat('user', id, '@example.org') as email", "id % 10 = 0 as gold"
    )
    jobs = users.selectExpr(
        "'welcome' as name",
        "struct(id, email) as data",
        "if(gold, 1, 10) as priority",  # 1 runs before 10; jobs without a priority run before both
        "if(id % 2 = 0, null, 60.0) as delay",  # seconds
        "named_struct('type', 'exponential', 'delay', 2.0) as backoff",
    )
    writer = jobs.write.format("toril").option("prefix", PREFIX).option("queue", "emails")
    writer.option("run", "welcome-2026-03").mode("append").save()
    rejects = spark.read.format("toril").options(prefix=PREFIX, table="rejects", queues="emails").load()
    rejects.show(truncate=False)


if __name__ == "__main__":
    main()
