"""The options of `op=settle`, checked once and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.types import StructType

from toril.errors import InvalidOption
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.keys import QueueKeys
from toril.protocol.worker_options import WorkerOptions
from toril.transport import whole_url

_KNOWN: Final = frozenset(
    "url op queue path prefix run dropped unknown_errors max_attempts max_result_size worker counts "
    "checkpointlocation".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleOptions:
    """What a writer of outcomes needs; it travels to executors, so it holds no connection."""

    url: str | None = field(default=None, repr=False)  # it may hold a password; None: not chosen yet
    jvm: str | None = None  # the only one whose tasks may use the server; None: all
    queue: str | None = None  # None: each row names its queue
    prefix: str = BULLMQ_PREFIX
    run: str | None = None  # of the batch read: what its rows do not settle is given back
    dropped: str = "give_back"  # what happens to it: give_back, or fail
    worker: str = "spark"
    counts: str | None = None  # key of a hash to which a batch write adds what it settled
    unknown_errors: str = "permanent"  # of errors without error_kind
    max_attempts: int | None = None  # overrides the attempts of every job
    max_result_size: int = 10 * 1024 * 1024  # JSON bytes; a larger result fails

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SettleOptions:
        options = {key.lower(): value for key, value in given.items()}
        for key in options:
            if key not in _KNOWN:
                raise InvalidOption("option", f"{key!r} is not known", f"one of {', '.join(sorted(_KNOWN))}")
        chosen: dict[str, Any] = {
            name: options[name]
            for name in ("prefix", "run", "dropped", "worker", "counts", "unknown_errors")
            if name in options
        }
        for name in ("max_attempts", "max_result_size"):
            if name in options:
                chosen[name] = _count(name, options[name])
        if chosen.get("dropped", "fail") not in ("give_back", "fail"):
            raise InvalidOption("dropped", f"cannot be {chosen['dropped']!r}", "one of give_back, fail")
        parsed = cls(
            url=whole_url(options["url"]) if "url" in options else None,
            queue=options.get("queue", options.get("path")),
            **chosen,
        )
        parsed.worker_options()
        if parsed.queue is not None:
            QueueKeys(parsed.queue, parsed.prefix)
        return parsed

    def worker_options(self) -> WorkerOptions:
        """The rules by which errors become outcomes."""
        return WorkerOptions(
            unknown_errors=self.unknown_errors,  # type: ignore[arg-type]  # it is checked there
            max_attempts=self.max_attempts,
        )

    def check_columns(self, schema: StructType) -> None:
        """Refuses a write whose rows cannot name jobs and their outcomes."""
        columns = set(schema.names)
        needed = ["job_id", "token"] if self.queue is not None else ["queue", "job_id", "token"]
        for name in needed:
            if name not in columns:
                remedy = (
                    f"op=settle needs the columns {', '.join(needed)} of the rows that table=work returned"
                )
                raise InvalidOption(name, "is missing", remedy)
        if not columns & {"result", "error"}:
            raise InvalidOption("result", "is missing", "op=settle needs the column result or error, or both")


def _count(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise InvalidOption(name, f"cannot be {text!r}", "give a whole number above zero")
    return int(text)
