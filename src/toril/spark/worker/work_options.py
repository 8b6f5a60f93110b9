"""The options of `table=work`, checked once and named."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from toril.errors import InvalidOption
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.spark.sources.options import SourceOptions
from toril.spark.worker.data_types import data_type_of
from toril.spark.worker.options import ROWS_JOBS
from toril.transport import whole_url

# A cold restart of a query takes longer than the lock of an ordinary worker.
STREAM_LOCK: Final = 60.0
# Nobody renews the locks of a batch read.
BATCH_LOCK: Final = 600.0
# Beyond it, removing a job from the list of active ones takes longer than running it.
MAX_UNSETTLED: Final = 25_000
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
# fmt: off
_KNOWN: Final = frozenset({
    "url", "table", "path", "queues", "prefix", "max_jobs", "max_unsettled", "lock_duration", "data_schema",
    "give_back", "dropped", "run", "worker", "partitions", "discover_every", "missing", "max_stalled_count",
})
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """What a reader of work needs; it travels to executors, so it holds no connection."""

    url: str | None = field(default=None, repr=False)  # it may hold a password; None: not chosen yet
    jvm: str | None = None  # the only one whose tasks may use the server; None: all
    queues: tuple[str, ...]  # names, or patterns with * and ?
    prefix: str = BULLMQ_PREFIX
    max_jobs: int = ROWS_JOBS  # of one micro-batch, or of a batch read
    max_unsettled: int = MAX_UNSETTLED  # no more jobs are taken while so many are not settled
    lock_duration: float | None = None  # seconds; None: 60 for a stream, 600 for a batch read
    data_schema: str | None = None
    give_back: str = "commit"  # when jobs whose rows were dropped are given back: at the commit, or never
    dropped: str = "give_back"  # what happens to jobs whose rows were dropped: give_back, or fail
    run: str | None = None  # of a batch read: the same run gets the same jobs
    worker: str | None = None  # the name of the worker in reports and jobs
    partitions: int = field(default_factory=lambda: os.cpu_count() or 1)
    discover_every: float = 30.0
    missing: str = ""
    max_stalled_count: int = 1

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WorkOptions:
        options = {key.lower(): value for key, value in given.items()}
        for key in options:
            if key not in _KNOWN:
                raise InvalidOption("option", f"{key!r} is not known", f"one of {', '.join(sorted(_KNOWN))}")
        if not options.get("queues"):
            raise InvalidOption("queues", "is missing", "name the queues whose jobs are to be taken")
        shared: dict[str, str] = {
            key: options[key] for key in ("queues", "prefix", "discover_every", "missing") if key in options
        }
        source = SourceOptions.parse({"table": "jobs", **shared})
        counts: dict[str, Any] = {
            name: _count(name, options[name])
            for name in ("max_jobs", "max_unsettled", "partitions", "max_stalled_count")
            if name in options
        }
        parsed = cls(
            url=whole_url(options["url"]) if "url" in options else None,
            queues=source.queues,
            prefix=source.prefix,
            lock_duration=_seconds("lock_duration", options.get("lock_duration")),
            data_schema=options.get("data_schema"),
            give_back=_one_of("give_back", options.get("give_back", "commit"), ("commit", "never")),
            dropped=_one_of("dropped", options.get("dropped", "give_back"), ("give_back", "fail")),
            run=_name("run", options.get("run")),
            worker=_name("worker", options.get("worker")),
            discover_every=source.discover_every,
            missing=source.missing,
            **counts,
        )
        parsed.data_type()
        return parsed

    def data_type(self) -> pa.DataType | None:
        return data_type_of(self.data_schema)

    def source(self) -> SourceOptions:
        """The options by which queues are found."""
        return SourceOptions(
            table="jobs",
            queues=self.queues,
            prefix=self.prefix,
            discover_every=self.discover_every,
            missing=self.missing,
        )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidOption(name, f"cannot be {value!r}", f"one of {', '.join(allowed)}")
    return value


def _count(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise InvalidOption(name, f"cannot be {text!r}", "give a whole number above zero")
    return int(text)


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise InvalidOption(name, f"cannot be {text!r}", "give seconds, such as 60")
    return value


def _name(name: str, text: str | None) -> str | None:
    if text is not None and not _NAME.fullmatch(text):
        remedy = "use up to 128 letters, digits, dots, dashes, underscores"
        raise InvalidOption(name, f"cannot be {text!r}", remedy)
    return text
