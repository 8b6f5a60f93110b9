"""What all steps of one pipeline use: its options, its lake, its Spark session and its server.

Guarantee: creating it starts nothing: the session starts, and the server is chosen, on first use.
"""

from __future__ import annotations

import functools
import json
import threading
from typing import TYPE_CHECKING

from toril.lake.storage import create_private, normalise
from toril.spark.pipeline.options import PipelineOptions
from toril.spark.pipeline.supervisor.sessions import SessionSource
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.options import SourceOptions
from toril.spark.sources.server_choice import url_for
from toril.transport import BlockingTransport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from toril.lake import Lake
    from toril.spark.pipeline.bronze.queue_entries import EntryCollector
    from toril.spark.pipeline.bronze.worker_reports import ReportCollector
    from toril.spark.pipeline.engines.engine import Engine


class PipelineContext:
    """The parts that the steps of one pipeline share."""

    def __init__(self, options: PipelineOptions, spark: SparkSession | None) -> None:
        self.options = options
        self.lake_url = normalise(options.lake)
        self.sessions = SessionSource(
            spark,
            options.master,
            options,
            spark_log=options.spark_log,
        )
        self.in_driver = (
            options.engine == "driver"
        )  # whether steps compute in this process, because there is little to do
        self.stopping = threading.Event()
        self.is_ingesting = False  # whether a thread keeps bronze/events up to date
        self.entry_collector: EntryCollector | None = None
        self.report_collector: ReportCollector | None = None

    @property
    def engine(self) -> Engine:
        """What computes the steps: Spark, whose session starts when it is first used, or this process."""
        if self.in_driver:
            from toril.spark.pipeline.engines.driver_engine import DriverEngine

            return DriverEngine(self._spark_engine)
        return self._spark_engine()

    def _spark_engine(self) -> Engine:
        from toril.spark.pipeline.engines.spark_engine import SparkEngine

        return SparkEngine(self.sessions.on_demand)

    @functools.cached_property
    def lake(self) -> Lake:
        """The tables; opened on first use, because that imports pyarrow."""
        from toril.lake import Lake

        return Lake(self.lake_url, self.options.storage_options)

    @functools.cached_property
    def redis(self) -> str:
        """The address of the server, the same for the driver and all tasks; refused if it cannot be chosen."""
        return url_for(self.sessions.master, self.options.redis)

    def create_folders(self) -> None:
        """Creates the folders of lake and checkpoint, private to their owner: payloads are in them."""
        create_private(self.lake_url)
        if self.options.checkpoint is not None:
            create_private(normalise(self.options.checkpoint))

    def connect(self) -> BlockingTransport:
        return BlockingTransport(self.redis)

    def queue_discovery(self) -> QueueSelection:
        """Finds the BullMQ queues of the pipeline."""
        return QueueSelection(
            SourceOptions.parse({"queues": self.options.queues, "prefix": self.options.prefix})
        )

    def entry_discovery(self, kind: str) -> QueueSelection:
        """Finds the list or stream queues of the pipeline."""
        options = {
            "queues": self.options.streams,
            "prefix": self.options.stream_prefix,
            "env": self.options.env,
        }
        return QueueSelection(SourceOptions.parse({**options, "table": "stream", "kind": kind}))

    def source_options(self) -> dict[str, str]:
        """The options of the data source that ingests events."""
        return {
            "url": self.redis,
            "queues": self.options.queues,
            "prefix": self.options.prefix,
            "starting": self.options.starting,
            "max_rows": str(self.options.max_rows),
            "discover_every": str(self.options.discover_every),
            "lake": self.lake.url,
            "storage_secrets": json.dumps(self.lake.storage_options),  # Spark redacts options with this name
            "parts": str(self.options.tasks),
        }
