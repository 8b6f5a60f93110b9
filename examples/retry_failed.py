"""Shows failed jobs, selects some with SQL and retries them. A second run has no further effect.

python examples/retry_failed.py        # needs toril[spark,server], or toril[spark] and TORIL_REDIS_URL
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from toril.spark import register
from toril.spark.pipeline.session import build_session

PREFIX = os.environ.get("TORIL_PREFIX", "bull")
CHOSEN = """
    select queue, job_id from failed
    where failed_reason like 'order % not found' and attempts_made < 3 and finished_at > now() - interval 1 day
"""


def main() -> None:
    spark = SparkSession.getActiveSession() or build_session()
    register(spark)
    failed = spark.read.format("toril").options(prefix=PREFIX, table="jobs", states="failed").load()
    failed.createOrReplaceTempView("failed")
    spark.sql(
        "select queue, failed_reason, count(*) as jobs from failed group by all order by jobs desc"
    ).show(truncate=60)
    # The selection is cached, because the query would find fewer jobs while they are retried.
    chosen = spark.sql(CHOSEN).cache()
    print(f"{chosen.count()} jobs are retried")
    chosen.write.format("toril").options(prefix=PREFIX, op="retry").mode("append").save()


if __name__ == "__main__":
    main()
