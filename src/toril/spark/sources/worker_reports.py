"""Reads worker reports.

Guarantee: a report that cannot be read becomes a row with its text in `extra`, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from toril.commands.command import plain
from toril.lake.tables import WORKER_REPORTS
from toril.protocol.keys import QueueKeys
from toril.spark.sources.columns import whole_number
from toril.transport import BlockingTransport

# Column → the name in a worker's report.
_COUNTS: Final = {
    "in_hand": "jobs",
    "heartbeats_ok": "heartbeats_ok",
    "heartbeats_failed": "heartbeats_failed",
    "sweeps_done": "sweeps_done",
    "sweeps_skipped": "sweeps_skipped",
    "memory_bytes": "memory",
}


def read_reports(transport: BlockingTransport, queue: str, keys: QueueKeys) -> Iterator[pa.Table]:
    """Returns one row per worker whose report has not expired."""
    names = transport.run(plain(list, "ZRANGE", keys.toril("workers"), 0, -1))
    words = [name.decode(errors="replace") for name in names]
    texts = transport.run_many([plain(bytes_or_none, "GET", keys.toril(f"worker:{name}")) for name in words])
    rows = [
        _row(queue, name, text) for name, text in zip(words, texts, strict=True) if isinstance(text, bytes)
    ]
    if rows:
        yield pa.Table.from_pylist(rows, schema=WORKER_REPORTS.schema)


def bytes_or_none(reply: bytes | None) -> bytes | None:
    return reply


def _row(queue: str, name: str, text: bytes) -> dict[str, Any]:
    report = _object(text)
    at = whole_number(report.get("at"))
    known = {"at", "worker", *_COUNTS.values()}
    extra = {key: value for key, value in report.items() if key not in known}
    return {
        "queue": queue,
        "worker": name,
        "ts": datetime.fromtimestamp(at / 1000, UTC) if at is not None else None,
        **{column: whole_number(report.get(field)) for column, field in _COUNTS.items()},
        "extra": json.dumps(extra) if extra else None,
        "snapshot_at": datetime.now(UTC),
    }


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"raw": text.decode(errors="replace")}
