"""50,000 rows saved under one run with 2, 3 and 7 partitions, in every order, are never more than 50,000 jobs:
`python -m tests.spark.partitions [ROWS]`.

Rows are known by content, by key, by job id, or counted by `toril.spark.enqueue`; some rows are equal. The plain sink
may refuse a save, the other three may not.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import toril.spark
from tests.servers import Server
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.session import build_session, own_session

PREFIX, EQUAL = "partitions", 10  # each content ten times
WAYS = ("plain", "key", "job_id", "enqueue")


def rows_of(spark: SparkSession, way: str, count: int) -> DataFrame:
    number = F.col("id") if way in ("key", "job_id") else F.col("id") % (count // EQUAL)
    rows = spark.range(0, count, 1, 1).select(
        F.lit("send").alias("name"), F.struct(number.alias("n")).alias("data"), "id"
    )
    return (
        rows.select("name", "data", F.concat(F.lit("row-"), "id").alias("job_id"))
        if way == "job_id"
        else rows.drop("id")
    )


def save(rows: DataFrame, way: str, queue: str, url: str) -> str:
    words: dict[str, Any] = {"url": url, "prefix": PREFIX, "queue": queue, "run": "r"}
    try:
        if way == "enqueue":
            toril.spark.enqueue(rows, **words)
        else:
            keyed = {"key": "data.n"} if way == "key" else {}
            rows.write.format("toril").options(**words, **keyed).mode("append").save()
    except Exception as error:
        if way != "plain" or "RunChanged" not in str(error):
            raise
        return "refused"
    return "saved"


def main(rows: str = "50000") -> None:
    count = int(rows)
    base = build_session("local[4]")
    base.sparkContext.setLogLevel("OFF")
    spark = own_session(base)
    with Server.valkey() as server, server.client() as client:
        for way in WAYS:
            for order in itertools.permutations((2, 3, 7)):
                queue = f"{way}-{'-'.join(map(str, order))}"
                said = [
                    save(rows_of(spark, way, count).repartition(n), way, queue, server.url)
                    for n in (*order, order[0])
                ]
                jobs = client.lrange(QueueKeys(queue, PREFIX).wait, 0, -1)
                print(
                    f"{way}, {order} and {order[0]} partitions: {', '.join(said)}: {len(jobs)} jobs",
                    flush=True,
                )
                assert len(jobs) == len(set(jobs)) == count
                client.flushall()
    base.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
