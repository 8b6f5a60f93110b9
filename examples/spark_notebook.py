# %% [markdown]
# # Queues in Spark
# Cells of a notebook (VS Code, Jupytext, Databricks). Needs `toril[spark,server]` and `plotly`.
# The server is TORIL_REDIS_URL, by default the embedded server in ./.toril.

# %%
import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from toril.spark import register
from toril.spark.pipeline.session import build_session
from toril.spark.transforms import attempts, job_timelines, queue_minute, with_fingerprint

PREFIX = os.environ.get("TORIL_PREFIX", "bull")
spark = SparkSession.getActiveSession() or build_session()
register(spark)


def read(table: str, **options: str) -> DataFrame:
    return spark.read.format("toril").options(prefix=PREFIX, table=table, **options).load()


# %% Jobs per queue and state
jobs = read("jobs")
jobs.groupBy("queue", "state").count().orderBy("queue", "state").show()

# %% Attempts. The transforms are plain functions.
events = read("events")
nothing_before = spark.createDataFrame(
    [],
    "queue string, job_id string, name string, state string, attempt long, stalls long, added_at timestamp, "
    "ready_at timestamp, active_at timestamp, updated_at timestamp, updated_seq long, error string",
)
tries = attempts(job_timelines(events, nothing_before)).cache()
tries.groupBy("queue", "outcome").agg(F.count("*"), F.expr("percentile(run_ms, 0.95)").alias("p95")).show()

# %% Plots of outcomes and run times per minute
minutes = queue_minute(tries).orderBy("minute")
outcomes = minutes.plot.line(x="minute", y=["completed", "failed", "retried"])
outcomes.write_html("outcomes.html")  # in a notebook: outcomes.show()
run_times = minutes.plot.line(x="minute", y=["run_p50_ms", "run_p95_ms", "run_p99_ms"])
run_times.write_html("run_times.html")

# %% The most frequent errors
with_fingerprint(tries).groupBy("queue", "pattern").count().orderBy(F.desc("count")).show(truncate=80)

# %% Retry the jobs that failed because an order was not found
failed = jobs.where("state = 'failed' and failed_reason like 'order % not found'").select("queue", "job_id")
failed.write.format("toril").options(prefix=PREFIX, op="retry").mode("append").save()
