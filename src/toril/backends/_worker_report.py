"""Publishes the worker report: figures and handler names of one worker. They expire unless they are renewed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from toril.commands import locks
from toril.commands.command import Command
from toril.commands.envelopes import EnvelopeKeys
from toril.errors import TorilError
from toril.protocol.codec import to_json
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

# A report outlives two missed heartbeats.
LIFETIME_IN_HEARTBEATS = 3


class ReportingWorker(Protocol):
    """The worker of a report."""

    @property
    def worker_id(self) -> str: ...
    @property
    def heartbeat(self) -> float:
        """Seconds between reports."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of jobs that the worker has handlers for; "*": all."""


def publish_report(
    transport: BlockingTransport,
    keys: QueueKeys | EnvelopeKeys,
    worker: ReportingWorker,
    figures: Mapping[str, object],
    more: Sequence[Command[Any]] = (),
) -> frozenset[str]:
    """Publishes the report, and runs further commands in the same call; raises the first error.

    Returns the names of jobs that live workers have handlers for.
    """
    ttl_ms = max(1000, round(worker.heartbeat * LIFETIME_IN_HEARTBEATS * 1000))
    now_ms = transport.now_ms()
    body = to_json({"worker": worker.worker_id, "at": now_ms, **figures}, field="report")
    report = locks.report_worker(keys, worker.worker_id, body, now_ms=now_ms, expire_ms=ttl_ms)
    names = () if figures.get("state") == "stopped" else worker.names
    announcement = locks.announce_names(keys, names, now_ms=now_ms, expire_ms=ttl_ms)
    replies = transport.run_many([*report, *more, *announcement])
    for reply in replies:
        if isinstance(reply, TorilError):
            raise reply
    known: frozenset[str] = replies[-1]
    return known
