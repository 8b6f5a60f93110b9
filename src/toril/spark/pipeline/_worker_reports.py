"""Worker reports to bronze/worker_reports, straight from the driver: a few small keys.

Guarantee: a report is stored once by each pipeline; workers that are silent are not invented.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from toril.lake import Lake
from toril.protocol.keys import QueueKeys
from toril.spark.pipeline._staging import write_file
from toril.spark.sources.discovery import Directory
from toril.spark.sources.worker_reports import read_reports
from toril.transport import BlockingTransport

TABLE: Final = "bronze/worker_reports"
APPLICATION: Final = "toril.reports"


@dataclass(slots=True)
class ReportCollector:
    """Collects what is new since it last looked."""

    lake: Lake
    directory: Directory
    connect: Callable[[], BlockingTransport]
    _seen: dict[tuple[str, str], Any] = field(default_factory=dict)

    def run(self) -> int:
        """Stores new reports; the result is their number."""
        with self.connect() as transport:
            queues = self.directory.queues(transport)
            tables = [
                table
                for queue, keys in queues.items()
                if isinstance(keys, QueueKeys)
                for table in read_reports(transport, queue, keys)
            ]
        rows = [row for table in tables for row in table.to_pylist() if self._is_new(row)]
        if rows:
            log = self.lake.ensure(TABLE)
            file = write_file(self.lake, TABLE, pa.Table.from_pylist(rows, schema=log.spec.schema), {})
            log.commit([file], application=APPLICATION, version=log.version + 1)
        return len(rows)

    def _is_new(self, row: dict[str, Any]) -> bool:
        key = (row["queue"], row["worker"])
        if self._seen.get(key) == row["ts"]:
            return False
        self._seen[key] = row["ts"]
        return True
