"""The options of a pipeline, and the summary of a run.

Guarantee: invalid options are refused when they are created, before Spark starts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toril.errors import InvalidOption
from toril.protocol.compatibility import ENVELOPE_PREFIX
from toril.spark.sources.options import SourceOptions
from toril.spark.sources.server_choice import require_named_server
from toril.transport import parse_address

if TYPE_CHECKING:
    from toril.spark.transforms.rules import Rule

ENGINES: Final = ("auto", "driver", "spark")
FILLS: Final = ("all", "failed", "none")  # each holds the next one


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    """What to read, where to write, and how much of it at once."""

    # None: TORIL_REDIS_URL, then, on a local master, the embedded server in ./.toril. It may hold a password.
    redis: str | None = field(default=None, repr=False)
    queues: str = "*"  # names or patterns, separated by commas
    prefix: str = "bull"
    lake: str | Path = "./lake"
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    # Folder of a streaming query that ingests instead of the driver, kept between runs.
    checkpoint: str | None = None
    starting: str = "earliest"  # for queues the lake does not know yet: earliest, latest or a time
    max_rows: int = 1_000_000  # events of one micro-batch
    tasks: int = 2  # tasks that read Redis at once
    # Attempts completed from job hashes: all, failed (not the completed ones), none; None: as snapshots.
    fill: str | None = None
    # Hashes and logs of jobs with an attempt that ended: all, failed (that did not complete), none.
    snapshots: str = "all"
    streams: str = "*"  # stream and list queues whose entries and dead letters are kept; empty: none
    stream_prefix: str = ENVELOPE_PREFIX
    env: str = "prod"
    interval: float = 0.25  # seconds between two looks at Redis
    discover_every: float = (
        3.0  # seconds between two searches for new queues; longer where a search takes long
    )
    refine_every: float = 2.0
    minutes_every: float = 10.0  # figures per minute, and alerts
    figures_every: float = 60.0  # hours and errors
    report_every: float = 15.0  # worker reports
    snapshot_every: float = 30.0  # hashes and logs of jobs, entries of streams and lists
    reconcile_every: float = 60.0
    maintain_every: float = 600.0
    keep_files_hours: float = 168.0  # how long files that are no longer in use stay for old readers
    keep: str = (
        ""  # how long rows stay, by layer or table: bronze=30d,silver=1y; a table that is not named keeps all
    )
    rules: tuple[Rule, ...] = ()  # of the user, beside the default ones
    # What computes a run: driver (this process, without Java), spark, or auto: driver for as many events as
    # `driver_rows`, unless a session, a master or a checkpoint is given. `up` always computes on Spark.
    engine: str = "auto"
    driver_rows: int = 1_000_000
    master: str | None = None  # where Spark runs, for a pipeline that is given no session; None: here
    spark_log: bool = False  # whether what Spark writes reaches the terminal

    def __post_init__(self) -> None:
        for name in ("fill", "snapshots"):
            if getattr(self, name) not in (*FILLS, *([None] if name == "fill" else [])):
                remedy = f"one of {', '.join(FILLS)}"
                raise InvalidOption(name, f"cannot be {getattr(self, name)!r}", remedy)
        if self.engine not in ENGINES:
            raise InvalidOption("engine", f"cannot be {self.engine!r}", f"one of {', '.join(ENGINES)}")
        if self.engine == "driver" and (self.checkpoint is not None or self.master is not None):
            raise InvalidOption(
                "engine", "is 'driver' beside a checkpoint or a master", "leave one of them out"
            )
        if FILLS.index(self.filled) < FILLS.index(self.snapshots):
            problem = f"{self.filled!r} needs hashes that are not kept with snapshots {self.snapshots!r}"
            raise InvalidOption("fill", problem, f"say snapshots {self.filled!r}, or fill {self.snapshots!r}")
        for name in ("max_rows", "tasks"):
            if getattr(self, name) < 1:
                raise InvalidOption(name, "must be at least 1", "give a whole number above zero")
        _check_keep(self.keep)
        if self.redis is not None:
            parse_address(self.redis)
        words = {"queues": self.queues, "prefix": self.prefix, "starting": self.starting}
        SourceOptions.parse({**words, "discover_every": str(self.discover_every)})

    def check_master(self, master: str) -> None:
        """Refuses a master whose executors would not find an embedded server, unless a server is named."""
        require_named_server(master, self.redis)

    @property
    def filled(self) -> str:
        """Which attempts are completed: silver is made of what bronze holds."""
        return self.snapshots if self.fill is None else self.fill


def _check_keep(text: str) -> None:
    if not text:
        return
    from toril.spark.pipeline.files.retention import parse_keep  # which needs these options itself

    parse_keep(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run did."""

    events: int  # rows that reached silver
    seconds: float
    steps: dict[str, float]  # step → seconds

    @property
    def rate(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0
