# %% [markdown]
# # Queues in Spark
# Cells of a notebook (VS Code, Jupytext, Databricks). Needs `toril[spark]`, `plotly` and a server with queues.

# %%
import os

from pyspark.sql import functions as F  # noqa: N812

from toril.spark import register
from toril.spark.pipeline.session import build_session
from toril.spark.transforms import attempts, lives, queue_minute, with_fingerprint

URL = os.environ.get("TORIL_REDIS_URL", "redis://localhost:6379")
spark = build_session("local[2]")
register(spark)

# %% What is in the queues now?
jobs = spark.read.format("toril").option("url", URL).option("table", "jobs").load()
jobs.groupBy("queue", "state").count().orderBy("queue", "state").show()

# %% Which attempts were there? The transforms are plain functions.
events = spark.read.format("toril").option("url", URL).load()
nothing_before = spark.createDataFrame(
    [],
    "queue string, job_id string, name string, state string, attempt long, stalls long, added_at timestamp, "
    "ready_at timestamp, active_at timestamp, updated_at timestamp, updated_seq long, error string",
)
tries = attempts(lives(events, nothing_before)).cache()
tries.groupBy("queue", "outcome").agg(F.count("*"), F.expr("percentile(run_ms, 0.95)").alias("p95")).show()

# %% A picture of the last hour
minutes = queue_minute(tries).orderBy("minute")
minutes.plot.line(x="minute", y=["completed", "failed", "retried"]).show()
minutes.plot.line(x="minute", y=["run_p50_ms", "run_p95_ms", "run_p99_ms"]).show()

# %% What goes wrong most often?
with_fingerprint(tries).groupBy("queue", "pattern").count().orderBy(F.desc("count")).show(truncate=80)

# %% Try those again that failed because a service was away
failed = jobs.where("state = 'failed' and failed_reason like '%ECONNREFUSED%'").select("queue", "job_id")
failed.write.format("toril").option("url", URL).option("op", "retry").mode("append").save()
