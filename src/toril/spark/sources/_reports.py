"""Reading what workers report of themselves at every heartbeat.

Guarantee: a report that cannot be read becomes a row with its text in `extra`, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from toril.commands._command import plain
from toril.contract.keys import QueueKeys
from toril.lake.tables import WORKER_REPORTS
from toril.spark.sources._columns import whole_number
from toril.store import BlockingStore

_COUNTS: Final = (
    "in_hand",
    "heartbeats_ok",
    "heartbeats_failed",
    "sweeps_done",
    "sweeps_skipped",
    "memory_bytes",
)


def read_reports(store: BlockingStore, queue: str, keys: QueueKeys) -> Iterator[pa.Table]:
    """One row per worker that reported lately."""
    flat = store.run(plain(list, "HGETALL", keys.toril("workers")))
    rows = [_row(queue, name, text) for name, text in zip(flat[::2], flat[1::2], strict=True)]
    if rows:
        yield pa.Table.from_pylist(rows, schema=WORKER_REPORTS.schema)


def _row(queue: str, name: bytes, text: bytes) -> dict[str, Any]:
    report = _object(text)
    at = whole_number(report.get("ts"))
    known = {"ts", *_COUNTS}
    extra = {key: value for key, value in report.items() if key not in known}
    return {
        "queue": queue,
        "worker": name.decode(errors="replace"),
        "ts": datetime.fromtimestamp(at / 1000, UTC) if at is not None else None,
        **{field: whole_number(report.get(field)) for field in _COUNTS},
        "extra": json.dumps(extra) if extra else None,
        "snapshot_at": datetime.now(UTC),
    }


def _object(text: bytes) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"raw": text.decode(errors="replace")}
