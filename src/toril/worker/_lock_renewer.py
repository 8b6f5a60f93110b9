"""Renews the locks of all jobs of a worker, from a thread and a connection of its own.

Guarantee: a handler that blocks the event loop, or a pool of busy threads, cannot make a job look stalled. A failed
renewal is logged and counted and the job continues; a lost lock is reported to the job. When the server answers again
after a failed renewal, the next one follows within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol

from toril.backends.base import Backend, D
from toril.worker._attempt_runner import AttemptRunner
from toril.worker._fetch_loop import FetchLoop
from toril.worker._observer import WorkerObserver

# Between heartbeats, the thread checks this often whether a running job was cancelled.
CHECK_SECONDS = 1.0
# A round takes about a second; one that takes this long has exceeded every time-out of its connection.
STUCK_AFTER = 30.0


class ReportFigures(Protocol):
    """What the worker report contains."""

    def figures(self) -> Mapping[str, object]: ...


class LockRenewer(Generic[D]):
    """One thread for all jobs of a worker."""

    def __init__(
        self,
        backend: Backend[D],
        fetch_loop: FetchLoop[D],
        runner: AttemptRunner[D],
        observer: WorkerObserver[D],
        report: ReportFigures,
        interval: float,
        *,
        renews: bool = True,
    ) -> None:
        self._backend = backend
        self._fetch_loop = fetch_loop
        self._runner = runner
        self._observer = observer
        self._figures = report
        self._interval = interval
        self._renews = renews  # without it, heartbeats only report
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._round_at = time.monotonic()
        self._reports_stop = False
        self._ended = False
        self._renew_now = False
        self.is_behind = False  # the last renewal failed
        self.renewed_at = time.monotonic()  # when the last renewal that succeeded began
        self.recovered_at = -math.inf  # when a renewal last succeeded after a failed or a missed one
        self.renewed = 0
        self.failed = 0

    @property
    def on_time(self) -> bool:
        """Whether the thread runs and is not stuck in a call."""
        thread = self._thread
        return thread is not None and thread.is_alive() and time.monotonic() - self._round_at < STUCK_AFTER

    # --- start and stop -------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._thread is None:
            self._wake.clear()
            self._reports_stop = self._ended = self._renew_now = self.is_behind = False
            self._round_at = self.renewed_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="toril-lock-renewer", daemon=True)
            self._thread.start()

    def stop_with_report(self) -> None:
        """Ends the thread with a last report, in which the worker has stopped; blocks like `stop`."""
        self._reports_stop = True
        self.stop()

    def end(self) -> None:
        """Ends the thread after this round, without waiting for it."""
        self._ended = True
        self._wake.set()

    def stop(self, within: float | None = None) -> None:
        """Ends the thread; blocks until the current renewal has ended, or so long. Not for the event loop."""
        thread = self._thread
        if thread is not None:
            self.end()
            thread.join(within)
            self._thread = None

    def renew_soon(self) -> None:
        """Renews all locks as soon as the thread can, whenever the next heartbeat is due."""
        self._renew_now = True
        self._wake.set()

    # --- in the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_heartbeat = time.monotonic()
        while not self._ended:
            self._round_at = now = time.monotonic()
            renew_now, self._renew_now = self._renew_now, False
            if now >= next_heartbeat or renew_now:
                self._run_ignoring_errors(self._heartbeat)
                next_heartbeat = (
                    next_heartbeat if now < next_heartbeat else max(next_heartbeat + self._interval, now)
                )
            else:
                self._run_ignoring_errors(self._check)
            self._wake.wait(max(0.0, min(next_heartbeat - time.monotonic(), CHECK_SECONDS)))
            self._wake.clear()
        if self._reports_stop:
            self._publish({"state": "stopped"})

    def _deliveries(self) -> Sequence[D]:
        if self._loop.is_closed():
            self.end()  # the event loop ended before the worker: these jobs will not be settled
            return ()
        return self._fetch_loop.deliveries()

    def _heartbeat(self) -> None:
        deliveries = self._deliveries()
        if deliveries and self._renews:
            self._renew(deliveries)
        else:
            self._note_renewal(time.monotonic())
        self._publish({})

    def _publish(self, changes: Mapping[str, object]) -> None:
        self._run_ignoring_errors(
            lambda: self._backend.publish_report({**self._figures.figures(), **changes})
        )

    def _renew(self, deliveries: Sequence[D]) -> None:
        started = time.monotonic()
        try:
            lost = self._backend.renew_locks(deliveries)
        except Exception as error:  # noqa: BLE001  # the next heartbeat may succeed; the jobs continue
            self.is_behind = True
            self.failed += len(deliveries)
            self._observer.heartbeat_failed([one.id for one in self._fetch_loop.deliveries()], error)
            return
        self._note_renewal(started)
        self.renewed += len(deliveries) - len(lost)
        self._observer.locks_renewed(len(deliveries) - len(lost), time.monotonic() - started)
        if lost:
            self._in_loop(self._note_lost, lost)

    def _note_renewal(self, started: float) -> None:
        """After two heartbeats without a renewal, whatever the reason, other workers' locks may have expired, too."""
        now = time.monotonic()
        if self.is_behind or now - self.renewed_at >= 2 * self._interval:
            self.recovered_at = now
        self.is_behind, self.renewed_at = False, started

    def _check(self) -> None:
        deliveries = self._deliveries() if self._backend.has_cancellations else ()
        if not deliveries:
            return
        for delivery, reason in self._backend.cancellations(deliveries):
            self._in_loop(self._runner.cancel_job, delivery.id, reason)
        if self.is_behind:
            self._renew(deliveries)  # the server answers again: locks that expired meanwhile are renewed now

    def _run_ignoring_errors(self, step: Callable[[], None]) -> None:
        # Outages are reported by the connection, and failed renewals by `_renew`: the next round may succeed.
        with contextlib.suppress(Exception):
            step()

    # --- in the event loop ----------------------------------------------------------------------------------

    def _in_loop(self, step: Callable[..., object], *values: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(step, *values)

    def _note_lost(self, deliveries: Sequence[D]) -> None:
        # A job that ended meanwhile, or waits for its children now, has released its lock itself.
        runner = self._runner
        found = [runner.attempts.get(id(one)) for one in deliveries if not one.lock_lost]
        self._observer.locks_lost([one for one in found if one and not runner.waits_for_children(one)])
