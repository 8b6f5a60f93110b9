"""`Pipeline`: Redis → bronze → silver → gold, once or for ever.

Guarantee: `run_once` leaves the tables as of the moment it began, or later; run again after any interruption, it goes
on where the tables end, without doubling or missing a row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toril.contract.errors import InvalidOption
from toril.lake import Lake

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from toril.spark.transforms.alerts import Rule

_FILLS: Final = ("all", "failed", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """What to read, where to write, and how much of it at once."""

    redis: str | None = None  # None: TORIL_REDIS_URL, then redis://localhost:6379
    queues: str = "*"  # names or patterns, separated by commas
    prefix: str = "bull"
    lake: str | Path = "./lake"
    storage_options: dict[str, str] = field(default_factory=dict)
    checkpoint: str | None = None  # None: in the lake
    starting: str = "earliest"  # for queues the lake does not know yet: earliest, latest or a time
    max_rows: int = 1_000_000  # events of one micro-batch
    tasks: int = 2  # tasks that read Redis at once
    fill: str = "all"  # attempts completed from job hashes: all, failed (not the completed ones), none
    interval: float = 0.5  # seconds between two looks at Redis
    refine_every: float = 2.0
    figures_every: float = 60.0  # hours and errors; minutes follow every refinement
    report_every: float = 15.0  # worker reports
    reconcile_every: float = 60.0
    maintain_every: float = 600.0
    keep_files_hours: float = 168.0  # how long files that are no longer in use stay for old readers
    rules: tuple[Rule, ...] = ()  # of the user, beside the default ones

    def __post_init__(self) -> None:
        if self.fill not in _FILLS:
            raise InvalidOption("fill", f"cannot be {self.fill!r}", f"one of {', '.join(_FILLS)}")
        for name in ("max_rows", "tasks"):
            if getattr(self, name) < 1:
                raise InvalidOption(name, "must be at least 1", "give a whole number above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run did."""

    events: int  # rows that reached silver
    seconds: float
    steps: dict[str, float]  # step → seconds

    @property
    def rate(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


class Pipeline:
    """The whole way of the data. `spark=None` makes a local session when one is needed."""

    def __init__(self, options: PipelineOptions | None = None, *, spark: SparkSession | None = None) -> None:
        self.options = options or PipelineOptions()
        self.lake = Lake(self.options.lake, self.options.storage_options)
        self._given = spark
        self._session: SparkSession | None = None

    @property
    def spark(self) -> SparkSession:
        """The pipeline's own session."""
        if self._session is None:
            from toril.spark.pipeline.session import build_session, own_session

            self._session = own_session(self._given or build_session())
        return self._session

    # --- running ---------------------------------------------------------------------------------------------

    def run_once(self) -> Summary:
        """Everything that is in Redis now, through to gold."""
        began = time.monotonic()
        steps: dict[str, float] = {}
        events = 0
        for name, step in self._steps():
            started = time.monotonic()
            events += step()
            steps[name] = round(time.monotonic() - started, 3)
        return Summary(events=events, seconds=time.monotonic() - began, steps=steps)

    def _steps(self) -> list[tuple[str, Any]]:
        return [
            ("ingest", self.ingest),
            ("silver", self.refine),
            ("reconcile", self.reconcile),
            ("reports", self.collect_reports),
            ("gold", self.gold),
        ]

    def ingest(self) -> int:
        """What Redis holds now, to bronze."""
        query = self.start_ingest(once=True)
        query.awaitTermination()
        return 0

    def start_ingest(self, *, once: bool = False) -> Any:
        """The streaming query that fills bronze."""
        from toril.spark.pipeline._ingest import BronzeWriter

        stream = self.spark.readStream.format("toril_ingest").options(**self._source_options()).load()
        writer = stream.writeStream.foreachBatch(BronzeWriter(self.lake)).queryName("toril_ingest")
        writer = writer.option("checkpointLocation", self.checkpoint)
        trigger = (
            {"availableNow": True} if once else {"processingTime": f"{int(self.options.interval * 1000)} ms"}
        )
        return writer.trigger(**trigger).start()

    @property
    def checkpoint(self) -> str:
        from toril.lake._storage import for_spark

        return self.options.checkpoint or f"{for_spark(self.lake.url)}/_checkpoints/ingest"

    def _source_options(self) -> dict[str, str]:
        options = {
            "queues": self.options.queues,
            "prefix": self.options.prefix,
            "starting": self.options.starting,
            "max_rows": str(self.options.max_rows),
            "lake": self.lake.url,
            "storage": json.dumps(self.lake.storage_options),
            "parts": str(self.options.tasks),
        }
        return {**options, "url": self.options.redis} if self.options.redis else options

    def refine(self) -> int:
        """Bronze to silver."""
        from toril.spark.pipeline._silver import SilverRefiner

        return SilverRefiner(self.spark, self.lake, self._filler()).run()

    def _filler(self) -> Any:
        from toril.spark.pipeline._filling import HashFiller

        if self.options.fill == "none":
            return lambda rows: rows
        return HashFiller(self.options.redis, self.options.prefix, self.options.fill == "all")

    def gold(self, names: Sequence[str] = ("queue_minute", "queue_hour", "errors")) -> int:
        """Silver to gold."""
        from toril.spark.pipeline._gold import GoldRefiner
        from toril.spark.transforms import DEFAULT_RULES

        GoldRefiner(self.spark, self.lake, (*DEFAULT_RULES, *self.options.rules)).run(names)
        return 0

    def reconcile(self) -> int:
        """Fills gaps from job hashes."""
        return 0

    def collect_reports(self) -> int:
        """Worker reports, to bronze."""
        return 0

    # --- reading ---------------------------------------------------------------------------------------------

    def query(self, sql: str) -> pa.Table:
        """SQL over the tables, without Spark."""
        return self.lake.query(sql)
