"""Completing attempts from job hashes: who ran them, and why those failed that were tried again.

Guarantee: a hash adds what events do not say and never changes what they do; a job without a hash stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from toril.commands.read import get_fields
from toril.protocol.keys import QueueKeys
from toril.spark.sources.columns import whole_number
from toril.spark.sources.readers import open_transport

_FIELDS: Final = ("pb", "ats", "atm", "failedReason", "stacktrace", "processedOn")
_PIPELINE: Final = 1_000
_TRACEBACK: Final = "Traceback (most recent call last):"
_FILLED: Final = ("worker", "error", "active_at", "run_ms")

Hash = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class HashEnricher:
    """Fills `worker` and `error` of attempts; runs on executors."""

    url: str | None = field(repr=False)
    prefix: str
    everything: bool = True  # False: only attempts that did not complete, which spares Redis one read per job

    def __call__(self, attempts: pa.Table) -> pa.Table:
        concerned = self._concerned(attempts)
        if not len(concerned):
            return attempts
        asked = attempts.take(concerned)
        with open_transport(self.url) as transport:
            hashes = [
                one
                for start in range(0, len(asked), _PIPELINE)
                for one in transport.run_many(
                    self._reads(asked.slice(start, _PIPELINE), cluster=transport.is_cluster)
                )
            ]
        return _filled(attempts, concerned.to_pylist(), [_fields(one) for one in hashes])

    def _concerned(self, attempts: pa.Table) -> pa.Array:
        rows = pa.array(range(len(attempts)), pa.int64())
        return rows if self.everything else rows.filter(pc.not_equal(attempts["outcome"], "completed"))

    def _reads(self, part: pa.Table, *, cluster: bool) -> list[Any]:
        keys: dict[str, QueueKeys] = {}
        reads = []
        for queue, job_id in zip(part["queue"].to_pylist(), part["job_id"].to_pylist(), strict=True):
            if queue not in keys:
                keys[queue] = QueueKeys(queue, self.prefix).resolve(cluster=cluster)
            reads.append(get_fields(keys[queue], job_id, _FIELDS))
        return reads


def _fields(reply: Any) -> Hash:
    return dict(zip(_FIELDS, reply, strict=True)) if isinstance(reply, list) else {}


def _filled(attempts: pa.Table, rows: Sequence[int], hashes: Sequence[Hash]) -> pa.Table:
    """Only what hashes can tell is taken apart; the other columns stay as they are."""
    told = {name: attempts[name].to_pylist() for name in _FILLED}
    facts = zip(*(attempts[name].to_pylist() for name in ("attempt", "outcome", "ended_at")), strict=True)
    known = dict(zip(rows, hashes, strict=True))
    for row, (attempt, outcome, ended_at) in enumerate(facts):
        fields = known.get(row)
        if not fields:
            continue
        told["worker"][row] = _worker(fields, attempt)
        if told["error"][row] is None and outcome in ("retried", "failed"):
            told["error"][row] = _error(fields, attempt)
        if told["active_at"][row] is None:
            told["active_at"][row], told["run_ms"][row] = _beginning(fields, attempt, ended_at)
    columns = {name: told.get(name, attempts[name]) for name in attempts.column_names}
    return pa.table(columns, schema=attempts.schema)


def _beginning(known: Hash, attempt: int, ended_at: datetime) -> tuple[datetime | None, int | None]:
    """The pickup was lost in a gap; the hash still has the time of the last one."""
    began = whole_number(known.get("processedOn"))
    if began is None or whole_number(known.get("ats")) != attempt:
        return None, None
    return datetime.fromtimestamp(began / 1000, UTC), max(0, int(ended_at.timestamp() * 1000) - began)


def _worker(known: Hash, attempt: int) -> str | None:
    """The hash names the worker of the last pickup only."""
    name = known.get("pb")
    return name.decode(errors="replace") if name and whole_number(known.get("ats")) == attempt else None


def _error(known: Hash, attempt: int) -> str | None:
    """The reason of a failed attempt: from the trace at its place, or the last reason if it was the last."""
    traces = _traces(known.get("stacktrace"))
    failures = whole_number(known.get("atm")) or len(traces)
    place = len(traces) - failures + attempt - 1  # old traces fall out at the front
    if 0 <= place < len(traces):
        return first_words(traces[place])
    reason = known.get("failedReason")
    return reason.decode(errors="replace") if reason and attempt >= failures else None


def first_words(trace: str) -> str:
    """What went wrong, in one line. Node says it before the frames, Python after those of the last traceback."""
    _, python, rest = trace.rpartition(_TRACEBACK)
    if not python:
        return trace.partition("\n")[0]
    said = next((line for line in rest.splitlines() if line.strip() and not line[0].isspace()), "")
    name, colon, words = said.partition(":")
    return f"{name.rpartition('.')[2]}{colon}{words}" or trace.partition("\n")[0]


def _traces(raw: bytes | None) -> list[str]:
    try:
        found = msgspec.json.decode(raw) if raw else []
    except msgspec.DecodeError:
        return []
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
