"""Prometheus metrics of a pipeline: how far its tables are behind the queues, and when they were last written.

Guarantee: the tables are only read; a lake that cannot be read is a metric (`bullmq_pipeline_up 0`), not an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from toril.errors import TorilError
from toril.protocol.extras import needed


class PipelineMetrics:
    """Reads the lag of one lake behind the queues of a server."""

    def __init__(self, lake: str, redis: str | None, prefix: str | None) -> None:
        with needed("spark"):
            from toril.spark.pipeline import Pipeline, PipelineOptions

        self._pipeline = Pipeline(PipelineOptions(lake=lake, redis=redis, prefix=prefix or "bull"))

    def families(self) -> list[Metric]:
        """Blocks while it reads."""
        return list(self._families())

    def _families(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("bullmq_pipeline_up", "1: the tables and their server could be read.", value=1)
        behind = GaugeMetricFamily(
            "bullmq_pipeline_lag_events", "Events that the tables have yet to read.", labels=["queue"]
        )
        age = GaugeMetricFamily(
            "bullmq_pipeline_last_commit_age_seconds",
            "Time since the last commit of a table.",
            labels=["table"],
        )
        try:
            lag = self._pipeline.lag()
        except (TorilError, OSError):
            yield GaugeMetricFamily("bullmq_pipeline_up", up.documentation, value=0)
            return
        for one in lag.queues:
            if one.behind is not None:
                behind.add_metric([one.queue], max(0, one.behind))
        for table, committed_at in lag.committed_at.items():
            age.add_metric([table], max(0.0, time.time() - committed_at))
        yield from (up, behind, age)
