"""Completing attempts from job hashes: who ran them, and why those failed that were tried again.

Guarantee: a hash adds what events do not say and never changes what they do; a job without a hash stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from toril.commands.read import get_fields
from toril.contract.keys import QueueKeys
from toril.spark.sources._columns import whole_number
from toril.spark.sources._readers import open_store

_FIELDS: Final = ("pb", "ats", "atm", "failedReason", "stacktrace")
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
    attempts = part.column("attempt").to_pylist()
    outcomes = part.column("outcome").to_pylist()
    workers: list[str | None] = []
    errors = part.column("error").to_pylist()
    for row, fields in enumerate(hashes):
        known = dict(zip(_FIELDS, fields, strict=True)) if isinstance(fields, list) else {}
        workers.append(_worker(known, attempts[row]))
        if errors[row] is None and outcomes[row] in ("retried", "failed"):
            errors[row] = _error(known, attempts[row])
    columns = {name: part.column(name) for name in part.schema.names}
    columns["worker"], columns["error"] = pa.array(workers, pa.string()), pa.array(errors, pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=part.schema)


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
