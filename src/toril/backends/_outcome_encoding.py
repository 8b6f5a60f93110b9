"""Outcomes as arguments of BullMQ's scripts.

Guarantee: pure. The arguments are those that Node's worker would send for the same outcome of the same job, with
upstream's reading of the job's options; a limit that upstream could not read keeps the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from toril.backends._bullmq_delivery import BullmqConfig, BullmqDelivery
from toril.commands import worker
from toril.commands.worker import Pickup, Settlement, SettlementKind
from toril.errors import MalformedValue
from toril.protocol.codec import to_json
from toril.protocol.outcome import (
    Completed,
    Failed,
    Outcome,
    Postponed,
    RateLimited,
    Requeued,
    Retry,
    UnknownName,
    WaitingForChildren,
)
from toril.protocol.record import JobRecord
from toril.protocol.refusals import JOB_FIELD

# The largest number that Lua holds exactly.
_MOST = 2**53
# Options whose encoding is cached: jobs of a queue mostly have the same ones.
CACHED_OPTIONS = 64


class OutcomeEncoder:
    """Encodes outcomes with the configuration of one worker."""

    __slots__ = ("_config", "_packed", "_plain")

    def __init__(self, config: BullmqConfig) -> None:
        self._config = config
        self._plain: dict[bytes, bool] = {}  # whether a completed job with these options needs none
        self._packed: dict[tuple[str, str, bytes], bytes] = {}  # by token, kind and options

    def settlement_of(self, delivery: BullmqDelivery, outcome: Outcome, pickup: Pickup) -> Settlement | None:
        """The settlement of an outcome; None for one that needs a script of its own."""
        match outcome:
            case Completed():
                return self._completed(delivery, outcome.value, pickup)
            case Failed():
                fields = _failure_fields(delivery.record, outcome)
                options = self._options(delivery, pickup, "failed")
                return Settlement(delivery.id, "failed", delivery.token, outcome.reason, options, fields)
            case Retry():
                return _retry(delivery, outcome)
            case Postponed():
                return Settlement(delivery.id, "delayed", delivery.token, ms(outcome.delay), "1")
            case UnknownName():
                return _unknown_name(delivery, outcome)
            case Requeued():
                return requeue_settlement(delivery, outcome.rank)
            case RateLimited() | WaitingForChildren():
                return None
            case _:
                assert_never(outcome)

    def _completed(self, delivery: BullmqDelivery, value: Any, pickup: Pickup) -> Settlement:
        raw = delivery.record.fields.get(b"opts", b"")
        plain = self._plain.get(raw)
        if plain is None:
            if len(self._plain) >= CACHED_OPTIONS:
                self._plain.clear()
            plain = self._plain[raw] = self._needs_none(delivery)
        options = b"" if plain else self._options(delivery, pickup, "completed")
        return Settlement(delivery.id, "completed", delivery.token, value, options)

    def _needs_none(self, delivery: BullmqDelivery) -> bool:
        keep = self._keep(_opts(delivery.record), "completed")
        return worker.needs_no_options(keep, self._config.metrics_size)

    def _options(self, delivery: BullmqDelivery, pickup: Pickup, kind: SettlementKind) -> bytes:
        key = delivery.token, kind, delivery.record.fields.get(b"opts", b"")
        options = self._packed.get(key)
        if options is None:
            if len(self._packed) >= CACHED_OPTIONS:
                self._packed.clear()
            options = self._packed[key] = self._pack(delivery, pickup, kind)
        return options

    def _pack(self, delivery: BullmqDelivery, pickup: Pickup, kind: SettlementKind) -> bytes:
        opts = _opts(delivery.record)
        return worker.finish_options(
            pickup=pickup,
            token=delivery.token,
            keep=self._keep(opts, kind),
            attempts=_attempts(opts, self._config.max_attempts),
            metrics_size=self._config.metrics_size,
            parent_flags={flag: bool(opts.get(flag)) for flag in ("fpof", "cpof", "idof", "rdof")},
        )

    def _keep(self, opts: Mapping[str, Any], kind: SettlementKind) -> Mapping[str, Any]:
        config = self._config
        if kind == "completed":
            return _keep(opts.get("removeOnComplete"), config.keep_completed)
        return _keep(opts.get("removeOnFail"), config.keep_failed)


def _unknown_name(delivery: BullmqDelivery, outcome: UnknownName) -> Settlement:
    """Delays the job until a worker has a handler for its name; the attempt does not count."""
    note = outcome.refusals.to_field(delivery.attempts_started)
    fields = worker.packed_fields({JOB_FIELD: note})
    return Settlement(delivery.id, "delayed", delivery.token, ms(outcome.delay), "1", fields)


def requeue_settlement(delivery: BullmqDelivery, rank: int = 0) -> Settlement:
    """Returns the job to the queue; the attempt does not count. `rank` of the jobs returned with it come before it."""
    return Settlement(delivery.id, "wait", delivery.token, rank or "")


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def _retry(delivery: BullmqDelivery, outcome: Retry) -> Settlement:
    fields = _failure_fields(delivery.record, outcome)
    delay = ms(outcome.delay)
    if delay > 0:
        return Settlement(delivery.id, "delayed", delivery.token, delay, "0", fields)
    push = "RPUSH" if _opts(delivery.record).get("lifo") else "LPUSH"
    return Settlement(delivery.id, "retry", delivery.token, push, fields=fields)


def _opts(record: JobRecord) -> Mapping[str, Any]:
    """A job whose options do not parse is finished like one without options."""
    try:
        return record.opts
    except MalformedValue:
        return {}


def _attempts(opts: Mapping[str, Any], override: int | None) -> int:
    return override or max(0, _whole(opts.get("attempts")) or 0)


def _keep(own: Any, fallback: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Upstream's reading of removeOnComplete and removeOnFail; a value that it could not read keeps the job."""
    if own is None:
        return fallback or {"count": -1}
    if isinstance(own, bool):
        return {"count": 0 if own else -1}
    wanted = own if isinstance(own, Mapping) else {"count": own}
    limits = {name: _whole(value) for name, value in wanted.items() if name in ("count", "age")}
    return {name: value for name, value in limits.items() if value is not None} or {"count": -1}


def _whole(value: object) -> int | None:
    """A number as the scripts can hold it; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(max(-_MOST, min(value, _MOST))) if value == value else None  # NaN differs from itself


def _failure_fields(record: JobRecord, outcome: Failed | Retry) -> bytes:
    traces = _traces(record, outcome)
    return worker.packed_fields({"failedReason": outcome.reason, "stacktrace": to_json(traces).decode()})


def _traces(record: JobRecord, outcome: Failed | Retry) -> list[str]:
    """The stack traces of a job; as upstream, each attempt adds its own, oldest first."""
    traces = [*record.stacktrace, outcome.stacktrace] if outcome.stacktrace else record.stacktrace
    limit = _opts(record).get("stackTraceLimit")
    if isinstance(limit, (int, float)) and limit >= 0:
        traces = traces[max(0, len(traces) - int(limit)) :]
    return traces


def record_after(record: JobRecord, delivery: BullmqDelivery, outcome: Outcome, at_ms: int) -> JobRecord:
    """The record of a job after an attempt, with what the script has written; without reading it back."""
    changed = dict(record.fields)
    match outcome:
        case Completed():
            changed[b"returnvalue"] = outcome.value
        case Failed() | Retry():
            changed[b"failedReason"] = outcome.reason.encode()
            changed[b"stacktrace"] = to_json(_traces(delivery.record, outcome))
        case _:
            return record
    if not isinstance(outcome, Retry):
        changed[b"finishedOn"] = b"%d" % at_ms
    elif outcome.delay > 0:
        changed[b"delay"] = b"%d" % ms(outcome.delay)
    changed[b"atm"] = b"%d" % (delivery.attempts_made + 1)
    if b"attemptsMade" in changed:  # the legacy field, which is read first
        changed[b"attemptsMade"] = changed[b"atm"]
    return JobRecord(record.id, changed)
