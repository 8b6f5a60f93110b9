"""The last report of each worker, with its rates.

Guarantee: a worker that never reported a heartbeat has no rate.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

# In words that Spark and DuckDB both know: the pipeline asks without Spark, because it asks every few seconds.
WORKERS: Final = """
with latest as (
    select *, row_number() over (partition by queue, worker order by ts desc) as place from {reports}
)
select queue, worker, ts as last_report_at, in_hand,
    heartbeats_ok, heartbeats_failed,
    case when heartbeats_ok + heartbeats_failed > 0
        then cast(heartbeats_failed as double) / (heartbeats_ok + heartbeats_failed) end as heartbeat_failure_rate,
    sweeps_done, sweeps_skipped,
    case when sweeps_done + sweeps_skipped > 0
        then cast(sweeps_skipped as double) / (sweeps_done + sweeps_skipped) end as sweep_skip_rate,
    memory_bytes
from latest where place = 1
"""


def workers(reports: DataFrame) -> DataFrame:
    """Rows of gold/workers."""
    return reports.sparkSession.sql(WORKERS, reports=reports)
