"""Renews leases while a query runs, closes those of committed micro-batches, and sweeps stalled jobs.

Guarantee: jobs of an open lease keep their locks as long as the process of the query lives. A closed lease holds no
job: what its query dropped was given back in its order, or failed with the reason.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from toril.backends.base import FinishedJob
from toril.backends.blocking import BlockingBackend, BullmqConfig, outcome_of
from toril.backends.bullmq import BullmqDelivery
from toril.commands import read
from toril.commands.leases import (
    close_lease,
    jobs_of,
    note_given_back,
    open_leases,
    outcome_fields,
    renew_lease,
)
from toril.errors import PermanentError, TorilError
from toril.protocol.keys import QueueKeys, client_name
from toril.protocol.record import JobRecord
from toril.protocol.worker_options import WorkerOptions
from toril.spark.sources.readers import open_transport
from toril.spark.worker.give_back import give_back_jobs
from toril.spark.worker.lease_names import is_of, token_of
from toril.transport import BlockingTransport

_log = logging.getLogger("toril.spark")
_DROPPED: Final = "the query returned no row for this job"
# Jobs whose fields one call reads, and how long the jobs of a lease are held while it is closed.
_READ_PER_CALL: Final = 500
_CLOSING_MS: Final = 60_000
Queues = Mapping[str, QueueKeys]


def config_of(worker: str, lock: float, max_stalled: int = 1) -> BullmqConfig:
    """How leases lock and report."""
    return BullmqConfig(
        worker_id=worker,
        lock_ms=round(lock * 1000),
        stalled_ms=round(lock * 1000 / 2),
        max_stalled=max_stalled,
        heartbeat=lock / 3,
        names=("*",),
    )


class QueueSource(Protocol):
    """Knows the queues whose jobs are taken: the reader of the query."""

    def queues(self) -> Queues:
        """The queues that exist now."""


class LeaseRenewer:
    """Renews the leases of one owner, from a thread of its own."""

    def __init__(self, url: str | None, config: BullmqConfig, source: QueueSource) -> None:
        self._url = url
        self._config = config
        self._source = source
        self._owner = ""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._transports: dict[str, BlockingTransport] = {}  # queue → its connection
        self._renewed = self._failed = self._swept = 0

    def start(self, owner: str) -> None:
        """Begins to renew. May be called again; the owner of the last call counts."""
        self._owner = owner
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="toril-leases", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.ExitStack() as opened:
            is_over = False
            while not is_over:
                try:
                    self._round(opened)
                except TorilError as error:
                    self._failed += 1
                    _log.warning("leases could not be renewed: %s", error)
                is_over = self._stop.wait(self._config.heartbeat)

    def _transport(self, keys: QueueKeys, opened: contextlib.ExitStack) -> BlockingTransport:
        """The connection of a queue. By its name, Node and bull-board recognise a worker of the queue."""
        if keys.name not in self._transports:
            name = client_name(keys, "worker", self._config.worker_id)
            transport = opened.enter_context(open_transport(self._url, name=name))
            self._transports[keys.name] = transport
        return self._transports[keys.name]

    def _round(self, opened: contextlib.ExitStack) -> None:
        for keys in self._source.queues().values():
            transport = self._transport(keys, opened)
            held = renew_all(transport, keys, self._owner, self._config.lock_ms)
            self._renewed += held
            backend = BlockingBackend(keys, transport, self._config)
            self._swept += len(backend.sweep())
            backend.publish_report(self._figures(held))

    def _figures(self, held: int) -> dict[str, object]:
        return {
            "state": "running",
            "jobs": held,
            "heartbeats_ok": self._renewed,
            "heartbeats_failed": self._failed,
            "sweeps_done": self._swept,
            "uptime": round(time.monotonic(), 1),
        }


def renew_all(transport: BlockingTransport, keys: QueueKeys, owner: str, lock_ms: int) -> int:
    """Renews the open leases of an owner; returns the number of jobs that they hold."""
    names = [one for one in transport.run(open_leases(keys)) if is_of(one, owner)]
    return sum(_renewed(transport, keys, names, lock_ms))


def _renewed(transport: BlockingTransport, keys: QueueKeys, names: Sequence[str], lock_ms: int) -> list[int]:
    """Renews leases; returns the number of jobs that each holds."""
    return _checked(
        transport.run_many([renew_lease(keys, one, token_of(one), lock_ms=lock_ms) for one in names])
    )


def close_settled(transport: BlockingTransport, keys: QueueKeys, owner: str, lock_ms: int) -> None:
    """Closes the leases of committed micro-batches that hold no job any more; the others are renewed."""
    names = [one for one in transport.run(open_leases(keys)) if is_of(one, owner)]
    counts = _renewed(transport, keys, names, lock_ms)
    empty = [name for name, held in zip(names, counts, strict=True) if not held]
    _checked(transport.run_many([close_lease(keys, one) for one in empty]))


def close_all(
    transport: BlockingTransport,
    keys: QueueKeys,
    owner: str,
    *,
    nonce: str | None = None,
    dropped: str = "give_back",
) -> int:
    """Closes the open leases of an owner, or of one micro-batch; returns how many jobs they still held."""
    names = [one for one in transport.run(open_leases(keys)) if is_of(one, owner, nonce)]
    counts = _renewed(transport, keys, names, _CLOSING_MS)
    holding = [name for name, held in zip(names, counts, strict=True) if held]  # mostly none: all are settled
    left: list[tuple[str, str]] = []
    for name, jobs in zip(holding, _checked_lists(transport, keys, holding), strict=True):
        left += [(one, token_of(name)) for one in jobs]
    count = 0
    if left:
        for token in sorted({token for _, token in left}):
            transport.run(note_given_back(keys, token))
        settle = fail_jobs if dropped == "fail" else give_back_jobs
        count = settle(transport, keys, left)
        _log.warning("%s: %d jobs whose rows were dropped: %s", keys.name, count, dropped.replace("_", " "))
    transport.run_many([close_lease(keys, one) for one in names])
    return count


def _checked_lists(transport: BlockingTransport, keys: QueueKeys, names: Sequence[str]) -> list[list[str]]:
    """The jobs that each lease still holds."""
    found: list[list[str]] = []
    for name in names:
        jobs = transport.run(jobs_of(keys, name))
        owners = transport.run_many([read.get_lock(keys, one.job_id) for one in jobs])
        token = token_of(name)
        found.append([one.job_id for one, owner in zip(jobs, owners, strict=True) if owner == token])
    return found


def fail_jobs(transport: BlockingTransport, keys: QueueKeys, held: Sequence[tuple[str, str]]) -> int:
    """Fails jobs, each with its token, because their rows were dropped; returns how many were accepted."""
    options = WorkerOptions()
    finished = [
        FinishedJob(one, outcome_of(PermanentError(_DROPPED), one, options))
        for one in deliveries_of(transport, keys, held)
    ]
    backend = BlockingBackend(keys, transport, config_of("", 60.0))
    return sum(error is None for error in backend.settle(finished))


def deliveries_of(
    transport: BlockingTransport, keys: QueueKeys, held: Sequence[tuple[str, str]]
) -> list[BullmqDelivery]:
    """Deliveries with the fields that their outcome depends on."""
    found: list[dict[bytes, bytes]] = []
    for start in range(0, len(held), _READ_PER_CALL):
        ids = [one for one, _ in held[start : start + _READ_PER_CALL]]
        fields = transport.run(outcome_fields(keys, ids))
        found += fields
    return [
        BullmqDelivery(JobRecord(one, fields), token)
        for (one, token), fields in zip(held, found, strict=True)
    ]


def _checked(replies: Sequence[Any]) -> list[Any]:
    for one in replies:
        if isinstance(one, TorilError):
            raise one
    return list(replies)
