"""The options of a `SparkWorker`.

Guarantee: options that exist are valid; what cannot be sent to an executor is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args

from toril.errors import InvalidOption
from toril.protocol.keys import QueueKeys
from toril.protocol.worker_options import WorkerOptions

Engine: TypeAlias = Literal["auto", "loop", "rows"]
Takes: TypeAlias = Literal["auto", "job", "pandas", "arrow", "dataframe"]
Missing: TypeAlias = Literal["error", "ignore"]

# Rows of one call of a handler: enough for vectorised code, few enough for a lock to be renewed by one call.
LOOP_JOBS: Final = 500
# Rows of one micro-batch. Its floor is half a second, and settling slows down beyond 25,000 active jobs.
ROWS_JOBS: Final = 10_000
# Objects of the driver's process, which an executor cannot use.
_NOT_SENT: Final = ("metrics", "tracer", "logger", "worker_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWorkerOptions:
    """Everything a `SparkWorker` needs besides its handler and its session."""

    queues: tuple[str, ...]
    prefix: str = "bull"
    engine: Engine = "auto"  # auto: rows for a handler of DataFrames, loop for all others
    takes: Takes = "auto"  # what the handler takes; auto: by the annotation of its argument
    max_jobs: int | None = None  # jobs of one call of the handler; None: 500 in the loop, 10,000 rows
    data_schema: Any = None  # of the data, as Spark's DDL or StructType; None: JSON text
    tasks: int | None = None  # Spark tasks at the same time; None: as many as Spark has cores
    slice: float = 20.0  # seconds that a task of the loop runs before Spark starts it again
    checkpoint: str | None = None  # rows: folder of the query; None: a new one for each run
    missing: Missing = "error"  # a queue that does not exist: error, or ignore to wait for it
    max_restarts: int = 10  # failures in a row after which `run` raises the last one
    worker: Mapping[str, Any] = field(default_factory=dict)  # options of the workers on the executors

    def __post_init__(self) -> None:
        self._check_queues()
        for name, choices in (("engine", Engine), ("takes", Takes), ("missing", Missing)):
            if getattr(self, name) not in get_args(choices):
                problem = f"is {getattr(self, name)!r}"
                raise InvalidOption(name, problem, f"choose one of {', '.join(get_args(choices))}")
        for name, least in (("max_jobs", 1), ("tasks", 1), ("max_restarts", 0)):
            _check_count(name, getattr(self, name), least)
        if not 1 <= self.slice <= 3600:
            raise InvalidOption("slice", f"is {self.slice}", "give seconds between 1 and 3600, such as 20")
        for name in _NOT_SENT:
            if self.worker.get(name) is not None:
                remedy = "leave it out: reports of the workers are in Redis, for toril top and the exporter"
                raise InvalidOption(name, "cannot be sent to Spark's executors", remedy)
        if self.worker.get("codecs") is not None:
            raise InvalidOption("codecs", "is not an option of SparkWorker", "run such jobs with a Worker")
        WorkerOptions.of(dict(self.worker), WorkerOptions)  # type: ignore[arg-type]  # the names are checked there

    def _check_queues(self) -> None:
        if not self.queues:
            raise InvalidOption("queue", "is missing", "name a queue")
        for queue in self.queues:
            QueueKeys(queue, self.prefix)
        if len(set(self.queues)) < len(self.queues):
            raise InvalidOption("queue", "is named twice", "leave one of them out")


def _check_count(name: str, value: object, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidOption(name, f"is {value!r}", f"give an integer of at least {least}")
