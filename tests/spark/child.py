"""A driver of its own, to be killed: `python -m tests.spark.child MASTER ACTION URL PREFIX LAKE`."""

from __future__ import annotations

import json
import sys

from tests.spark.places import JAVA
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.session import build_session

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def main(master: str, action: str, url: str, prefix: str, lake: str) -> None:
    session = build_session(master, memory="512m", spark_log=False, **SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    options = PipelineOptions(redis=url, prefix=prefix, lake=lake, max_rows=1500, snapshots="none")
    pipeline = Pipeline(options, spark=session)
    if action == "up":
        pipeline.up()  # until it is killed
    elif action == "run":
        print(json.dumps({"events": pipeline.run_once().events}), flush=True)
    else:
        rows = session.range(0, int(action), 1, 4).selectExpr(
            "'send' as name", "named_struct('n', id) as data"
        )
        words = {"url": url, "prefix": prefix, "queue": "many", "run": "import", "batch": "20"}
        rows.write.format("toril").options(**words).mode("append").save()
        print(json.dumps({"rows": int(action)}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
