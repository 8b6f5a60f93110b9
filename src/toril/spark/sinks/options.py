"""The options of a writer: Spark's string options, checked once and named.

Guarantee: a write that cannot succeed is refused before the first row.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from toril.errors import InvalidOption
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.transport import whole_url

OPERATIONS: Final = ("enqueue", "retry", "replay", "remove")
KINDS: Final = ("bullmq", "list", "stream")
# fmt: off
_KNOWN: Final = frozenset({
    "url", "queue", "kind", "prefix", "env", "op", "run", "name", "batch", "rate", "max_waiting", "wait_timeout",
    "on_reject", "ledger_hours", "state", "path", "checkpointlocation", "key", "numbers",
})
# fmt: on
_RUN_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Everything a writer needs; it is sent to executors, so it holds no connection."""

    url: str | None = field(default=None, repr=False)  # it may hold a password; None: not chosen yet
    jvm: str | None = None  # the only one whose tasks may use the server; None: all
    queue: str | None = None  # None: each row names its queue
    kind: str = "bullmq"
    prefix: str = "bull"
    env: str = "prod"
    op: str = "enqueue"
    run: str | None = None  # names a batch write: the same run adds a row once, however often it is started
    key: tuple[str, ...] = ()  # columns by which rows are known; none: by job_id, or by content
    counted: bool = False  # rows come with a hash of their content, equal ones in one partition
    name: str | None = None  # of all jobs, when rows have no `name`
    numbers: str = (
        "digits"  # text: integers beyond 2^53 and decimals become text, which JavaScript does not round
    )
    batch: int = 200  # rows per call of the server
    rate: float | None = None  # rows per second
    max_waiting: int | None = None  # writing pauses while the queue holds as many
    wait_timeout: float = 600.0  # seconds to wait for a shorter queue before the write fails
    on_reject: str = "report"  # report: set rejected rows aside; fail: stop at the first
    ledger_hours: float = 24.0  # how long a run is remembered
    state: str = "failed"  # retry: of which state

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        options = {key.lower(): value for key, value in given.items()}
        for key in options:
            if key not in _KNOWN:
                raise InvalidOption("option", f"{key!r} is not known", f"one of {', '.join(sorted(_KNOWN))}")
        kind = _one_of("kind", options.get("kind", "bullmq"), KINDS)
        parsed = cls(
            url=whole_url(options["url"]) if "url" in options else None,
            queue=options.get("queue", options.get("path")),
            kind=kind,
            prefix=options.get("prefix", BULLMQ_PREFIX if kind == "bullmq" else ENVELOPE_PREFIX),
            env=options.get("env", "prod"),
            op=_one_of("op", options.get("op", "enqueue"), OPERATIONS),
            run=_run(options.get("run")),
            key=_columns("key", options.get("key")),
            name=options.get("name"),
            numbers=_one_of("numbers", options.get("numbers", "digits"), ("digits", "text")),
            batch=_count("batch", options.get("batch", "200")),
            rate=_number("rate", options["rate"]) if "rate" in options else None,
            max_waiting=_count("max_waiting", options["max_waiting"]) if "max_waiting" in options else None,
            wait_timeout=_number("wait_timeout", options.get("wait_timeout", "600")),
            on_reject=_one_of("on_reject", options.get("on_reject", "report"), ("report", "fail")),
            ledger_hours=_number("ledger_hours", options.get("ledger_hours", "24")),
            state=_one_of("state", options.get("state", "failed"), ("failed", "completed")),
        )
        parsed._check_together()
        return parsed

    def _check_together(self) -> None:
        if self.op == "replay" and self.kind == "bullmq":
            raise InvalidOption(
                "op", "replay is for dead letters", 'set kind to "stream" or "list", or use op=retry'
            )
        if self.op == "retry" and self.kind != "bullmq":
            raise InvalidOption("op", "retry is for BullMQ queues", "use op=replay for dead letters")
        if self.queue is not None:
            self.keys(self.queue, cluster=False)

    @property
    def rows_per_call(self) -> int:
        """With a rate, one call adds at most the rows of one second, to avoid bursts."""
        return self.batch if self.rate is None else max(1, min(self.batch, int(self.rate)))

    def keys(self, queue: str, *, cluster: bool) -> QueueKeys | ListKeys | StreamKeys:
        """The keys of one queue of the kind that is written to."""
        if self.kind == "bullmq":
            return QueueKeys(queue, self.prefix).resolve(cluster=cluster)
        return (ListKeys if self.kind == "list" else StreamKeys)(queue, self.prefix, self.env, cluster)


def _one_of(field: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise InvalidOption(field, f"cannot be {value!r}", f"one of {', '.join(allowed)}")
    return value


def _columns(field: str, text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(sorted({name for part in text.split(",") if (name := part.strip())}))
    if not names:
        raise InvalidOption(field, "names no column", "give columns, with commas, or leave it out")
    return names


def _number(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise InvalidOption(field, f"cannot be {text!r}", "give a number above zero")
    return value


def _count(field: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise InvalidOption(field, f"cannot be {text!r}", "give a whole number above zero")
    return int(text)


def _run(text: str | None) -> str | None:
    if text is not None and not _RUN_NAME.fullmatch(text):
        raise InvalidOption(
            "run", f"cannot be {text!r}", "use up to 128 letters, digits, dots, dashes, underscores"
        )
    return text
