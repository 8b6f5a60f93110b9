"""What a reader is asked for: Spark's string options, checked once and named.

Guarantee: an option that is misspelt or makes no sense is refused with a remedy before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from toril.contract.errors import InvalidOption
from toril.lake.tables import (
    DLQ_ENTRIES,
    EVENTS,
    JOBS,
    LOGS,
    REJECTS,
    STREAM_ENTRIES,
    WORKER_REPORTS,
    TableSpec,
)

SOURCES: Final[dict[str, TableSpec]] = {
    "events": EVENTS,
    "jobs": JOBS,
    "logs": LOGS,
    "stream": STREAM_ENTRIES,
    "dlq": DLQ_ENTRIES,
    "worker_reports": WORKER_REPORTS,
    "rejects": REJECTS,
}
JOB_STATES: Final = (
    "waiting",
    "prioritized",
    "delayed",
    "paused",
    "waiting-children",
    "active",
    "completed",
    "failed",
)

_KNOWN: Final = frozenset(
    "url table queues prefix env kind states since until columns starting max_rows rows_per_task "
    "discover_every missing path".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Everything a reader needs; it travels to executors, so it holds no connection."""

    url: str | None = None  # None: TORIL_REDIS_URL, then redis://localhost:6379
    table: str = "events"
    queues: tuple[str, ...] = ("*",)  # names, or patterns with * and ?
    prefix: str = "bull"  # "msaas" for stream, dlq
    env: str = "prod"  # stream, dlq
    kind: str = "stream"  # dlq: of stream queues or of list queues
    states: tuple[str, ...] = JOB_STATES  # jobs, logs
    since: datetime | None = None  # events: from that time on; jobs: finished at or after it
    until: datetime | None = None
    columns: tuple[str, ...] = ()  # empty: all
    starting: str = "earliest"  # events as a stream: earliest, latest, or a time
    max_rows: int = 1_000_000  # of one micro-batch
    rows_per_task: int = 250_000  # a longer stretch of one stream is read by several tasks
    discover_every: float = 30.0  # seconds between two searches for queues that match a pattern
    missing: str = ""  # what to do about a named queue that does not exist: error, or ignore

    @property
    def spec(self) -> TableSpec:
        return SOURCES[self.table]

    @property
    def has_pattern(self) -> bool:
        return any(is_pattern(queue) for queue in self.queues)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        options = {key.lower(): value for key, value in given.items()}
        _refuse_unknown(options)
        table = _one_of("table", options.get("table", options.get("path", "events")), tuple(SOURCES))
        return cls(
            url=options.get("url"),
            table=table,
            queues=_names(options.get("queues", "*")) or ("*",),
            prefix=options.get("prefix", "msaas" if table in ("stream", "dlq") else "bull"),
            env=options.get("env", "prod"),
            kind=_one_of("kind", options.get("kind", "stream"), ("stream", "list")),
            states=_states(options.get("states", "")),
            since=_time("since", options.get("since")),
            until=_time("until", options.get("until")),
            columns=_columns(table, options.get("columns", "")),
            starting=options.get("starting", "earliest"),
            max_rows=_count("max_rows", options.get("max_rows", "1000000")),
            rows_per_task=_count("rows_per_task", options.get("rows_per_task", "250000")),
            discover_every=_seconds("discover_every", options.get("discover_every", "30")),
            missing=_one_of("missing", options.get("missing", ""), ("", "error", "ignore")),
        )

    def start_time(self) -> datetime | None:
        """The time that `starting` or `since` names, if any."""
        if self.starting in ("earliest", "latest"):
            return self.since
        return _time("starting", self.starting)


def is_pattern(queue: str) -> bool:
    return "*" in queue or "?" in queue


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for key in options:
        if key not in _KNOWN:
            raise InvalidOption("option", f"{key!r} is not known", f"one of {', '.join(sorted(_KNOWN))}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidOption(field, f"cannot be {value!r}", f"one of {', '.join(a for a in allowed if a)}")
    return value


def _states(text: str) -> tuple[str, ...]:
    names = tuple("waiting" if name == "wait" else name for name in _names(text))
    for name in names:
        _one_of("states", name, JOB_STATES)
    return names or JOB_STATES


def _columns(table: str, text: str) -> tuple[str, ...]:
    known = SOURCES[table].schema.names
    return tuple(_one_of("columns", name, tuple(known)) for name in _names(text))


def _count(field: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise InvalidOption(field, f"cannot be {text!r}", "give a whole number above zero")
    return int(text)


def _seconds(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise InvalidOption(field, f"cannot be {text!r}", "give seconds, such as 30")
    return value


def _time(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise InvalidOption(
            field, f"{text!r} is no time", "write 2026-01-31T12:00:00Z, or milliseconds"
        ) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
