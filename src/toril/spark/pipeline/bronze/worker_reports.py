"""Copies worker reports to bronze/worker_reports. The driver does it: they are a few small keys.

Guarantee: a report is stored once, by the pipeline that is first; there is no row for a worker that did not report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from toril.lake import Lake
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline.files.parquet_files import write_file
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.worker_reports import read_reports
from toril.transport import BlockingTransport

TABLE: Final = "bronze/worker_reports"
APPLICATION: Final = "toril.reports"
_LAST: Final = "select queue, worker, max(ts) as ts from bronze.worker_reports group by all"


@dataclass(slots=True)
class ReportCollector:
    """Collects the reports that are new since its last run."""

    lake: Lake
    directory: QueueSelection
    connect: Callable[[], BlockingTransport]
    _seen: dict[tuple[str, str], Any] | None = (
        None  # queue and worker → time of the last report; None: not yet read
    )

    def run(self) -> int:
        """Stores new reports; the result is their number."""
        if self._seen is None:
            self._seen = {
                (row["queue"], row["worker"]): row["ts"] for row in self.lake.query(_LAST).to_pylist()
            }
        with self.connect() as transport:
            queues = self.directory.queues(transport)
            tables = [
                table
                for queue, keys in queues.items()
                if isinstance(keys, QueueKeys)
                for table in read_reports(transport, queue, keys)
            ]
        seen = self._seen
        rows = [row for table in tables for row in table.to_pylist() if _is_new(row, seen)]
        if rows:
            log = self.lake.ensure(TABLE)
            file = write_file(self.lake, TABLE, pa.Table.from_pylist(rows, schema=log.spec.schema), {})
            log.commit([file], application=APPLICATION, version=log.version + 1)
        return len(rows)


def _is_new(row: dict[str, Any], seen: dict[tuple[str, str], Any]) -> bool:
    key = (row["queue"], row["worker"])
    if seen.get(key) == row["ts"]:
        return False
    seen[key] = row["ts"]
    return True
