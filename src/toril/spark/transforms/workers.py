"""The last report of each worker, with its rates.

Guarantee: a worker that never reported a heartbeat has no rate, rather than a good one.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

_COUNTS = ("in_hand", "heartbeats_ok", "heartbeats_failed", "sweeps_done", "sweeps_skipped", "memory_bytes")


def workers(reports: DataFrame) -> DataFrame:
    """Rows of gold/workers."""
    latest = reports.groupBy("queue", "worker").agg(
        F.max("ts").alias("last_report_at"), F.max_by(F.struct(*_COUNTS), "ts").alias("last")
    )
    flat = latest.select("queue", "worker", "last_report_at", *(F.col(f"last.{name}") for name in _COUNTS))
    return flat.select(
        "queue",
        "worker",
        "last_report_at",
        "in_hand",
        "heartbeats_ok",
        "heartbeats_failed",
        _share("heartbeats_failed", "heartbeats_ok").alias("heartbeat_failure_rate"),
        "sweeps_done",
        "sweeps_skipped",
        _share("sweeps_skipped", "sweeps_done").alias("sweep_skip_rate"),
        "memory_bytes",
    )


def _share(part: str, rest: str) -> Column:
    total = F.col(part) + F.col(rest)
    return F.when(total > 0, F.col(part) / total)
