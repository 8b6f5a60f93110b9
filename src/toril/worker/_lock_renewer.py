"""Keeps the locks of all jobs in hand, from a thread and a connection of its own.

Guarantee: a handler that blocks the event loop, or a pool of busy threads, cannot make a job of ours look abandoned. A
failed renewal is logged and counted and the job goes on; a lock that is gone for good is told to the job. When the
server answers again after a failed renewal, the next one follows within a second.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from toril.backends.base import Source

# Between heartbeats the keeper looks whether somebody cancelled a job in hand.
GLANCE_SECONDS = 1.0
# A turn takes about a second; one that takes this long has outlived every time-out of its connection.
STUCK_AFTER = 30.0


class LockRenewer:
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
        self._ended = False
        self._hurry = False
        self.behind = False  # the last renewal failed
        self.renewed = time.monotonic()  # when the last renewal that succeeded began
        self.recovered = -math.inf  # when one last succeeded after a failed one, or after a silence
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
            self._retiring = self._ended = self._hurry = self.behind = False
            self._turned = self.renewed = time.monotonic()
            self._thread = threading.Thread(target=self._loop, name="toril-lock-keeper", daemon=True)
            self._thread.start()

    def retire(self) -> None:
        """Ends the thread with a last report, in which the worker has stopped; blocks like `stop`."""
        self._retiring = True
        self.stop()

    def leave(self) -> None:
        """Ends the thread after this turn; nobody waits for it."""
        self._ended = True
        self._wake.set()

    def beat_soon(self) -> None:
        """Renews all locks as soon as the thread can, whenever the next renewal is due."""
        self._hurry = True
        self._wake.set()

    def stop(self, within: float | None = None) -> None:
        """Ends the thread; blocks for the renewal that runs now, or so long, so call it off the event loop."""
        thread = self._thread
        if thread is not None:
            self.leave()
            thread.join(within)
            self._thread = None

    def _loop(self) -> None:
        next_beat = time.monotonic()
        while not self._ended:
            self._turned = now = time.monotonic()
            hurry, self._hurry = self._hurry, False
            if now >= next_beat or hurry:
                self._safely(self._beat, 0)
                next_beat = next_beat if now < next_beat else max(next_beat + self._interval, now)
            else:
                self._safely(self._look, 0)
            self._wake.wait(max(0.0, min(next_beat - time.monotonic(), GLANCE_SECONDS)))
            self._wake.clear()
        if self._retiring:
            self._report({"state": "stopped"})

    def _beat(self) -> None:
        jobs = self._in_hand()
        if jobs:
            self._renew(jobs)
        else:
            self._note_renewal(time.monotonic())
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
            self.behind = True
            self.failed += len(jobs)
            self._on_error(error, len(jobs))
            return
        self._note_renewal(started)
        self.ok += len(jobs) - len(lost)
        self._on_beat(len(jobs) - len(lost), time.monotonic() - started)
        if lost:
            self._on_lost(lost)

    def _note_renewal(self, started: float) -> None:
        """A silence of two heartbeats, whatever its reason, may have let locks of other workers run out as well."""
        now = time.monotonic()
        if self.behind or now - self.renewed >= 2 * self._interval:
            self.recovered = now
        self.behind, self.renewed = False, started

    def _look(self) -> None:
        glance = self._glance
        jobs = self._in_hand() if glance is not None else ()
        if jobs and glance is not None:
            glance(jobs)
            if self.behind:
                self._renew(jobs)  # the server answers again: locks that ran out meanwhile are retaken now

    def _safely(self, step: Callable[[], Any], jobs: int) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001  # whatever happens in one turn, the next one comes
            self._on_error(error, jobs)
