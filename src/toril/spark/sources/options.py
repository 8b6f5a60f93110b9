"""The options of a reader: Spark's string options, checked once and named.

Guarantee: an option that is misspelt or makes no sense is refused with a remedy before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from toril.errors import InvalidOption
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.transport import whole_url

if TYPE_CHECKING:
    from toril.lake.tables import TableSpec

# Source → the constant of `toril.lake.tables` with its schema, which is imported when it is needed.
_SOURCES: Final = {
    "events": "EVENTS",
    "jobs": "JOBS",
    "logs": "LOGS",
    "stream": "STREAM_ENTRIES",
    "dlq": "DLQ_ENTRIES",
    "worker_reports": "WORKER_REPORTS",
    "rejects": "REJECTS",
}
KINDS: Final = ("bullmq", "stream", "list")
_DAY: Final = "day"  # events: a column of the lake, which parts its files by it
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
    "discover_every missing path ids on_gap".split()
)
_TIMED: Final = ("events", "jobs", "logs", "stream", "dlq", "rejects")
_ONLY_FOR: Final = {
    "states": ("jobs", "logs"),
    "since": _TIMED,
    "until": _TIMED,
    "starting": ("events",),
    "max_rows": ("events",),
    "rows_per_task": ("events",),
    "on_gap": ("events",),
    "ids": ("jobs", "logs"),
    "env": ("stream", "dlq", "rejects"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Everything a reader needs; it is sent to executors, so it holds no connection."""

    url: str | None = field(default=None, repr=False)  # it may hold a password; None: not chosen yet
    jvm: str | None = None  # the only one whose tasks may use the server; None: all
    table: str = "events"
    queues: tuple[str, ...] = ("*",)  # names, or patterns with * and ?
    kind: str = "bullmq"  # of the queues; stream, dlq and rejects may be those of stream and list queues
    prefix: str = BULLMQ_PREFIX
    env: str = "prod"  # of stream and list queues
    states: tuple[str, ...] = JOB_STATES  # jobs, logs
    since: datetime | None = None  # events, entries: from that time on; jobs, logs: of jobs finished since
    until: datetime | None = None
    columns: tuple[str, ...] = ()  # empty: all
    starting: str = "earliest"  # events as a stream: earliest, latest, or a time
    max_rows: int = 1_000_000  # of one micro-batch
    rows_per_task: int = 250_000  # a longer stretch of one stream is read by several tasks
    discover_every: float = 30.0  # seconds between two searches for queues that match a pattern
    ids: tuple[str, ...] = ()  # jobs, logs: of these jobs only; empty: of all
    on_gap: str = "record"  # events that were lost: a row for them, or an error (fail)
    missing: str = ""  # what to do about a named queue that does not exist: error, or ignore

    @property
    def spec(self) -> TableSpec:
        return _spec(self.table)

    @property
    def has_pattern(self) -> bool:
        return any(is_pattern(queue) for queue in self.queues)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        options = {key.lower(): value for key, value in given.items()}
        _refuse_unknown(options)
        table = _one_of("table", options.get("table", options.get("path", "events")), tuple(_SOURCES))
        kind = _kind(table, options.get("kind"))
        parsed = cls(
            url=whole_url(options["url"]) if "url" in options else None,
            table=table,
            queues=_queues(options.get("queues", "*")),
            kind=kind,
            prefix=options.get("prefix", BULLMQ_PREFIX if kind == "bullmq" else ENVELOPE_PREFIX),
            env=options.get("env", "prod"),
            states=_states(options.get("states", "")),
            since=_time("since", options.get("since")),
            until=_time("until", options.get("until")),
            columns=_columns(table, options.get("columns", "")),
            starting=options.get("starting", "earliest"),
            max_rows=_count("max_rows", options.get("max_rows", "1000000")),
            rows_per_task=_count("rows_per_task", options.get("rows_per_task", "250000")),
            discover_every=_seconds("discover_every", options.get("discover_every", "30")),
            ids=_names(options.get("ids", "")),
            on_gap=_one_of("on_gap", options.get("on_gap", "record"), ("record", "fail")),
            missing=_one_of("missing", options.get("missing", ""), ("", "error", "ignore")),
        )
        parsed._check_together(options.keys())
        return parsed

    def _check_together(self, given: Iterable[str]) -> None:
        """Refuses options that would have no effect, because the result would be misread."""
        for option, tables in _ONLY_FOR.items():
            if option in given and self.table not in tables:
                raise InvalidOption(
                    option, f"has no meaning for table={self.table}", f"it is for {', '.join(tables)}"
                )
        if self.since and self.until and self.since > self.until:
            raise InvalidOption("since", "is later than until", "exchange them")
        if self.ids and (self.since or self.until):
            raise InvalidOption("ids", "beside since or until", 'filter by "finished_at"')
        if (self.since or self.until) and (self.table, self.kind) == ("stream", "list"):
            raise InvalidOption("since", "is not for lists, which hold no times", 'filter by "enqueue_ts"')
        self.start_time()

    def start_time(self) -> datetime | None:
        """The time that `starting` or `since` names, if any."""
        if self.starting in ("earliest", "latest"):
            return self.since
        return _time("starting", self.starting)


def to_ms(moment: datetime) -> int:
    """Milliseconds since 1970; rounded, because a float of seconds may be slightly below its millisecond."""
    return round(moment.timestamp() * 1000)


def is_pattern(queue: str) -> bool:
    return "*" in queue or "?" in queue


def _refuse_unknown(options: Mapping[str, str]) -> None:
    for key in options:
        if key not in _KNOWN:
            raise InvalidOption("option", f"{key!r} is not known", f"one of {', '.join(sorted(_KNOWN))}")


def _kind(table: str, given: str | None) -> str:
    """Entries are those of stream queues by default; events, jobs and logs are of BullMQ queues."""
    if table in ("stream", "dlq"):
        return _one_of("kind", given or "stream", ("stream", "list"))
    return _one_of("kind", given or "bullmq", KINDS if table == "rejects" else ("bullmq",))


def _queues(text: str) -> tuple[str, ...]:
    names = _names(text)
    if not names:
        raise InvalidOption("queues", "is empty", 'name queues, or give "*" for all')
    return names


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
    names = _names(text)
    known = tuple(name for name in _spec(table).schema.names if name != _DAY) if names else ()
    return tuple(_one_of("columns", name, known) for name in names)


def _spec(table: str) -> TableSpec:
    from toril.lake import tables

    found: TableSpec = getattr(tables, _SOURCES[table])
    return found


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
            field, f"{text!r} is not a time", "write 2026-01-31T12:00:00Z, or milliseconds"
        ) from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
