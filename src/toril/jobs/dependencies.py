"""The children of a job: their results and what became of them, and the operations that read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from toril.commands import read
from toril.errors import InvalidOption
from toril.jobs._operations import Operation, ThreadCall
from toril.jobs._payloads import AnyCalls
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


def get_children_values(calls: AnyCalls, job_id: str) -> Operation[JsonObject]:
    processed = yield read.get_children(calls.keys, job_id)[0]
    return (yield from _values(calls, processed))


def get_dependency_counts(keys: QueueKeys, job_id: str) -> Operation[DependencyCounts]:
    counts = yield read.get_dependency_counts(keys, job_id)
    return DependencyCounts(**counts)


def get_dependencies_page(
    calls: AnyCalls, job_id: str, kind: read.DependencyKind, cursor: str, count: int
) -> Operation[DependencyPage]:
    if kind not in get_args(read.DependencyKind):
        choices = ", ".join(get_args(read.DependencyKind))
        raise InvalidOption("kind", f"is {kind!r}", f"choose one of {choices}")
    following, children = yield read.scan_dependencies(calls.keys, job_id, kind, cursor, count)
    if kind == "processed":
        children = yield from _values(calls, children)
    return DependencyPage(children=children, cursor=following)


def get_dependencies(calls: AnyCalls, job_id: str) -> Operation[Dependencies]:
    processed, pending = read.get_children(calls.keys, job_id)
    ignored, failed = read.get_failed_children(calls.keys, job_id)
    found = yield (processed, pending, ignored, failed)
    values = yield from _values(calls, found[0])
    return Dependencies(processed=values, unprocessed=found[1], ignored=found[2], failed=found[3])


def _values(calls: AnyCalls, processed: Mapping[str, str]) -> Operation[JsonObject]:
    """The results of children, as they were before the codecs of their queues."""
    codecs = calls.codecs
    if codecs is None or not processed:
        return {key: returned(value) for key, value in processed.items()}
    values: JsonObject = yield ThreadCall(
        lambda: {
            key: returned(codecs.decode_child(value.encode(errors="replace")))
            for key, value in processed.items()
        }
    )
    return values
