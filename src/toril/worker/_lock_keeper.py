"""Keeps the locks of all jobs in hand, from a thread and a connection of its own.

Guarantee: a handler that blocks the event loop, or a pool of busy threads, cannot make a job of ours look abandoned. A
failed renewal is logged and counted and the job goes on; a lock that is gone for good is told to the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from toril.queues.source import Source

# Between heartbeats the keeper looks whether somebody cancelled a job in hand.
GLANCE_SECONDS = 1.0
# A turn takes about a second; one that takes this long has outlived every time-out of its connection.
STUCK_AFTER = 30.0


class LockKeeper:
    """One thread for all jobs of a worker."""

    def __init__(
        self,
        source: Source,
        *,
        interval: float,
        in_hand: Callable[[], Sequence[Any]],
        on_beat: Callable[[int, float], Any],
        on_lost: Callable[[Sequence[Any]], Any],
        on_error: Callable[[BaseException, int], Any],
        glance: Callable[[Sequence[Any]], Any] | None = None,
        figures: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._source = source
        self._interval = interval
        self._in_hand = in_hand
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._on_error = on_error
        self._glance = glance
        self._figures = figures
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._turned = time.monotonic()
        self._retiring = False
        self.ok = 0
        self.failed = 0

    @property
    def on_time(self) -> bool:
        """Whether the thread lives and is not stuck in a call."""
        thread = self._thread
        return thread is not None and thread.is_alive() and time.monotonic() - self._turned < STUCK_AFTER

    def start(self) -> None:
        if self._thread is None:
            self._wake.clear()
            self._retiring = False
            self._turned = time.monotonic()
            self._thread = threading.Thread(target=self._loop, name="toril-lock-keeper", daemon=True)
            self._thread.start()

    def retire(self) -> None:
        """Ends the thread with a last report, in which the worker has stopped; blocks like `stop`."""
        self._retiring = True
        self.stop()

    def leave(self) -> None:
        """Ends the thread after this turn; nobody waits for it."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread; blocks for the renewal that runs now, so call it off the event loop."""
        thread = self._thread
        if thread is not None:
            self._wake.set()
            thread.join()
            self._thread = None

    def _loop(self) -> None:
        next_beat = time.monotonic()
        while not self._wake.is_set():
            self._turned = now = time.monotonic()
            if now >= next_beat:
                self._safely(self._beat, 0)
                next_beat = max(next_beat + self._interval, now)
            else:
                self._safely(self._look, 0)
            self._wake.wait(max(0.0, min(next_beat - time.monotonic(), GLANCE_SECONDS)))
        if self._retiring:
            self._report({"state": "stopped"})

    def _beat(self) -> None:
        jobs = self._in_hand()
        if jobs:
            self._renew(jobs)
        self._report({})

    def _report(self, news: dict[str, Any]) -> None:
        figures = self._figures
        if figures is not None:
            self._safely(lambda: self._source.report({**figures(), **news}), 0)

    def _renew(self, jobs: Sequence[Any]) -> None:
        started = time.monotonic()
        try:
            lost = self._source.keep_alive(jobs)
        except Exception as error:  # noqa: BLE001  # the next heartbeat may succeed; the jobs go on
            self.failed += len(jobs)
            self._on_error(error, len(jobs))
            return
        self.ok += len(jobs) - len(lost)
        self._on_beat(len(jobs) - len(lost), time.monotonic() - started)
        if lost:
            self._on_lost(lost)

    def _look(self) -> None:
        glance = self._glance
        jobs = self._in_hand() if glance is not None else ()
        if jobs and glance is not None:
            glance(jobs)

    def _safely(self, step: Callable[[], Any], jobs: int) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # whatever happens in one turn, the next one comes
            self._on_error(error, jobs)
