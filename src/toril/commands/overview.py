"""The figures of a queue for monitoring: exporter, `toril top`, `toril queues`.

Guarantee: one call for each queue, so that all queues are one pipeline; its cost does not grow with the number of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from toril.commands.command import Command, Replay, Reply
from toril.commands.envelopes import EnvelopeKeys, decode_totals, jobs_key, kind_of
from toril.commands.own_script import OwnScript
from toril.commands.schedulers import broken_key
from toril.errors import MalformedValue
from toril.protocol.codec import from_json
from toril.protocol.event import entry_time_ms
from toril.protocol.json_types import JsonFields
from toril.protocol.keys import RETURNED_CONSUMER, AnyKeys, QueueKeys, StreamKeys
from toril.protocol.state import JobCounts

# So that a reply has some hundred kilobytes at most; more workers are monitored by their own metrics.
MOST_WORKERS: Final = 1_000

_QUEUE = OwnScript(
    "queue_overview",
    keys="wait paused active prioritized delayed completed failed waiting_children meta workers broken_schedulers",
    args="base max_reports",
)
_ENVELOPES = OwnScript(
    "envelope_overview",
    keys="jobs scheduled dlq totals workers list_consumers",
    args="kind consumer_group base max_reports returned_consumer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """A BullMQ queue. Times are Unix milliseconds of the server; None: there is no such job."""

    counts: JobCounts
    paused: bool
    version: str
    ready_since_ms: int | None  # of the job that is fetched next
    oldest_failed_ms: int | None
    workers: list[JsonFields]  # worker reports of the last heartbeat
    broken_schedulers: int  # schedulers whose next job could not be made
    worker_count: int  # workers that run, those that are not among `workers` included


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeOverview:
    """A list or stream queue."""

    waiting: int
    active: int  # on a list: known for reliable pickup only
    scheduled: int
    dead: int
    ready_since_ms: int | None
    oldest_dead_ms: int | None
    totals: Mapping[str, int]
    workers: list[JsonFields]
    entries: int  # in the stream, those that are done included
    consumers: int
    worker_count: int  # workers that run, those that are not among `workers` included


def overview(keys: QueueKeys, *, max_reports: int = MOST_WORKERS) -> Command[QueueOverview]:
    script_keys = _QUEUE.keys(keys, workers=keys.toril("workers"), broken_schedulers=broken_key(keys))
    args = _QUEUE.args(base=keys.base, max_reports=max_reports)
    return _QUEUE.call(script_keys, args, _queue, Replay.SAFE)


def _queue(reply: list[Reply]) -> QueueOverview:
    wait, paused_jobs, active, prioritized, delayed, completed, failed, children = map(int, reply[:8])
    return QueueOverview(
        counts=JobCounts(
            waiting=wait,
            paused=paused_jobs,
            active=active,
            prioritized=prioritized,
            delayed=delayed,
            completed=completed,
            failed=failed,
            waiting_children=children,
        ),
        paused=bool(reply[8]),
        version=reply[9].decode(errors="replace"),
        ready_since_ms=_known(reply[10]),
        oldest_failed_ms=_known(reply[11]),
        workers=_reports(reply[12]),
        broken_schedulers=int(reply[13]),
        worker_count=int(reply[14]),
    )


def _known(milliseconds: int) -> int | None:
    return int(milliseconds) if int(milliseconds) >= 0 else None


def envelope_overview(keys: EnvelopeKeys, *, max_reports: int = MOST_WORKERS) -> Command[EnvelopeOverview]:
    script_keys = _ENVELOPES.keys(
        keys,
        jobs=jobs_key(keys),
        totals=keys.toril("totals"),
        workers=keys.toril("workers"),
        list_consumers=keys.toril("consumers"),
    )
    args = _ENVELOPES.args(
        kind=kind_of(keys),
        consumer_group=keys.consumer_group if isinstance(keys, StreamKeys) else "",
        base=keys.base,
        max_reports=max_reports,
        returned_consumer=RETURNED_CONSUMER,
    )
    return _ENVELOPES.call(script_keys, args, _envelopes, Replay.SAFE)


def _envelopes(reply: list[Reply]) -> EnvelopeOverview:
    waiting, active, scheduled, dead, since, oldest_dead, totals, reports, entries, consumers, workers = reply
    return EnvelopeOverview(
        waiting=int(waiting),
        active=int(active),
        scheduled=int(scheduled),
        dead=int(dead),
        ready_since_ms=_moment(since.decode(errors="replace")),
        oldest_dead_ms=entry_time_ms(oldest_dead.decode()) if oldest_dead else None,
        totals=decode_totals(totals),
        workers=_reports(reports),
        entries=int(entries),
        consumers=int(consumers),
        worker_count=int(workers),
    )


def _moment(text: str) -> int | None:
    """Returns Unix milliseconds from those of an entry or the time of an envelope; None when it does not parse."""
    try:
        return int(text) if text.isdigit() else round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _reports(texts: Sequence[bytes]) -> list[JsonFields]:
    found: list[JsonFields] = []
    for text in texts:
        try:
            report = from_json(text, field="report")
        except MalformedValue:
            continue  # another program's value
        if isinstance(report, dict):
            found.append(report)
    return found


def any_overview(
    keys: AnyKeys, *, max_reports: int = MOST_WORKERS
) -> Command[QueueOverview] | Command[EnvelopeOverview]:
    """Returns the overview of a queue of any kind."""
    if isinstance(keys, QueueKeys):
        return overview(keys, max_reports=max_reports)
    return envelope_overview(keys, max_reports=max_reports)
