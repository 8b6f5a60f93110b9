"""Jobs that are processed on Spark's executors, in batches.

Needs Java and `pip install "toril[spark,server]"`. The handler takes a batch of jobs as a table of Arrow; handlers of
pandas DataFrames, and of single jobs, are possible, too.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from toril import sync
from toril.spark import SparkWorker


def score(batch: pa.Table) -> pa.Array:
    return pc.multiply(pc.struct_field(batch["data"], "x"), 2.0)


def main() -> None:
    with sync.Queue("inference") as queue:
        jobs = queue.add_bulk([("score", {"x": n}) for n in range(1000)])
        summary = SparkWorker("inference", score, master="local[2,4]", data_schema="x double").run_once()
        print(summary.completed, "completed,", summary.failed, "failed")
        print(jobs[21].wait_until_finished(timeout=10))


if __name__ == "__main__":
    main()

# prints:
# 1000 completed, 0 failed
# 42.0
