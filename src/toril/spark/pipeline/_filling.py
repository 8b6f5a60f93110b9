"""Completing attempts from job hashes: who ran them, and why those failed that were tried again.

Guarantee: a hash adds what events do not say and never changes what they do; a job without a hash stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from toril.commands.read import get_fields
from toril.contract.keys import QueueKeys
from toril.spark.sources._columns import whole_number
from toril.spark.sources._readers import open_store

_FIELDS: Final = ("pb", "ats", "atm", "failedReason", "stacktrace", "processedOn")
_PIPELINE: Final = 1_000


@dataclass(frozen=True, slots=True)
class HashFiller:
    """Fills `worker` and `error` of attempts; runs on executors."""

    url: str | None
    prefix: str
    everything: bool = True  # False: only attempts that did not complete, which spares Redis one read per job

    def __call__(self, attempts: DataFrame) -> DataFrame:
        schema = attempts.schema
        if self.everything:
            return attempts.mapInArrow(self._fill, schema)
        concerned = F.col("outcome") != "completed"
        return attempts.where(~concerned).unionByName(
            attempts.where(concerned).mapInArrow(self._fill, schema)
        )

    def _fill(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open_store(self.url) as store:
            for batch in batches:
                for start in range(0, batch.num_rows, _PIPELINE):
                    part = batch.slice(start, _PIPELINE)
                    yield _filled(part, store.run_many(self._reads(part, cluster=store.is_cluster)))

    def _reads(self, part: pa.RecordBatch, *, cluster: bool) -> list[Any]:
        keys: dict[str, QueueKeys] = {}
        reads = []
        for queue, job_id in zip(
            part.column("queue").to_pylist(), part.column("job_id").to_pylist(), strict=True
        ):
            if queue not in keys:
                keys[queue] = QueueKeys(queue, self.prefix).resolve(cluster=cluster)
            reads.append(get_fields(keys[queue], job_id, _FIELDS))
        return reads


def _filled(part: pa.RecordBatch, hashes: Sequence[Any]) -> pa.RecordBatch:
    rows = part.to_pylist()
    for row, fields in zip(rows, hashes, strict=True):
        known = dict(zip(_FIELDS, fields, strict=True)) if isinstance(fields, list) else {}
        row["worker"] = _worker(known, row["attempt"])
        if row["error"] is None and row["outcome"] in ("retried", "failed"):
            row["error"] = _error(known, row["attempt"])
        if row["active_at"] is None:
            _fill_beginning(row, known)
    return pa.RecordBatch.from_pylist(rows, schema=part.schema)


def _fill_beginning(row: dict[str, Any], known: Mapping[str, bytes | None]) -> None:
    """The pickup was lost in a gap; the hash still has the time of the last one."""
    began = whole_number(known.get("processedOn"))
    if began is None or whole_number(known.get("ats")) != row["attempt"]:
        return
    row["active_at"] = datetime.fromtimestamp(began / 1000, UTC)
    row["run_ms"] = max(0, int(row["ended_at"].timestamp() * 1000) - began)


def _worker(known: Mapping[str, bytes | None], attempt: int) -> str | None:
    """The hash names the worker of the last pickup only."""
    name = known.get("pb")
    return name.decode(errors="replace") if name and whole_number(known.get("ats")) == attempt else None


def _error(known: Mapping[str, bytes | None], attempt: int) -> str | None:
    """The reason of a failed attempt: from the trace at its place, or the last reason if it was the last."""
    traces = _traces(known.get("stacktrace"))
    failures = whole_number(known.get("atm")) or len(traces)
    place = len(traces) - failures + attempt - 1  # old traces fall out at the front
    if 0 <= place < len(traces):
        return traces[place].partition("\n")[0]
    reason = known.get("failedReason")
    return reason.decode(errors="replace") if reason and attempt >= failures else None


def _traces(raw: bytes | None) -> list[str]:
    try:
        found = msgspec.json.decode(raw) if raw else []
    except msgspec.DecodeError:
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
