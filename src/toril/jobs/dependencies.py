"""The children of a job: their results and what became of them, and the operations that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from toril.commands import read
from toril.errors import InvalidOption
from toril.jobs._operations import Operation
from toril.jobs.stored_values import returned
from toril.protocol.json_types import JsonFields, JsonObject
from toril.protocol.keys import QueueKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The children of a job, by their keys."""

    processed: JsonFields  # results of those that completed
    unprocessed: list[str]  # those that have not ended
    ignored: Mapping[str, str]  # reasons of those whose failure the parent ignores
    failed: list[str]  # those whose failure counts against the parent


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyCounts:
    """How many children a job has, by what became of them."""

    processed: int
    unprocessed: int
    ignored: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyPage:
    """Some children of one kind, by their keys."""

    children: JsonFields  # with the result (processed) or the reason (ignored), or None
    cursor: str  # of the next page; "0" at the end


def get_children_values(keys: QueueKeys, job_id: str) -> Operation[JsonObject]:
    processed = yield read.get_children(keys, job_id)[0]
    return _values(processed)


def get_dependency_counts(keys: QueueKeys, job_id: str) -> Operation[DependencyCounts]:
    counts = yield read.get_dependency_counts(keys, job_id)
    return DependencyCounts(**counts)


def get_dependencies_page(
    keys: QueueKeys, job_id: str, kind: read.DependencyKind, cursor: str, count: int
) -> Operation[DependencyPage]:
    if kind not in get_args(read.DependencyKind):
        choices = ", ".join(get_args(read.DependencyKind))
        raise InvalidOption("kind", f"is {kind!r}", f"choose one of {choices}")
    following, children = yield read.scan_dependencies(keys, job_id, kind, cursor, count)
    return DependencyPage(children=_values(children) if kind == "processed" else children, cursor=following)


def get_dependencies(keys: QueueKeys, job_id: str) -> Operation[Dependencies]:
    processed, pending = read.get_children(keys, job_id)
    ignored, failed = read.get_failed_children(keys, job_id)
    found = yield (processed, pending, ignored, failed)
    return Dependencies(processed=_values(found[0]), unprocessed=found[1], ignored=found[2], failed=found[3])


def _values(processed: Mapping[str, str]) -> JsonObject:
    return {key: returned(value) for key, value in processed.items()}
