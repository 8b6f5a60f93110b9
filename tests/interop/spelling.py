"""Options in BullMQ's words, as a step has them, told to toril in its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toril import Backoff, JobOptions
from toril.protocol.options import Deduplication, KeepJobs, ParentRef


def options_of(opts: Mapping[str, Any]) -> JobOptions:
    """The same options as toril takes them; a backoff that is not named is none, as in Node."""
    fields: dict[str, Any] = {"attempts": 1, "backoff": None}
    for name, value in opts.items():
        ours, convert = _OURS[name]
        fields[ours] = convert(value)
    return JobOptions.of(fields)


def _as_is(value: Any) -> Any:
    return value


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def _backoff(wire: Mapping[str, Any]) -> Backoff:
    kind = Backoff.exponential if wire["type"] == "exponential" else Backoff.fixed
    return kind(_seconds(wire["delay"]))


def _keep(wire: Any) -> Any:
    return KeepJobs(**wire) if isinstance(wire, dict) else wire


def _deduplication(wire: Mapping[str, Any]) -> Deduplication:
    return Deduplication.from_wire(dict(wire))


def _parent(wire: Mapping[str, str]) -> ParentRef:
    return ParentRef(wire["id"], wire["queue"])


_OURS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "attempts": ("attempts", _as_is),
    "backoff": ("backoff", _backoff),
    "priority": ("priority", _as_is),
    "delay": ("delay", _seconds),
    "lifo": ("lifo", _as_is),
    "jobId": ("job_id", _as_is),
    "removeOnComplete": ("remove_on_complete", _keep),
    "removeOnFail": ("remove_on_fail", _keep),
    "keepLogs": ("keep_logs", _as_is),
    "sizeLimit": ("size_limit", _as_is),
    "stackTraceLimit": ("stack_trace_limit", _as_is),
    "deduplication": ("deduplication", _deduplication),
    "failParentOnFailure": ("fail_parent_on_failure", _as_is),
    "continueParentOnFailure": ("continue_parent_on_failure", _as_is),
    "ignoreDependencyOnFailure": ("ignore_dependency_on_failure", _as_is),
    "removeDependencyOnFailure": ("remove_dependency_on_failure", _as_is),
    "parent": ("parent", _parent),
}
