"""Reconnects after an outage.

Guarantee: the delay between attempts grows up to the limit, and each attempt is logged once; the count starts again
only when the server has answered a call, so a server that accepts and drops connections causes no tight loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Generic

from toril.backends.base import Backend, D
from toril.errors import InvalidOption, TorilError
from toril.protocol.worker_options import WorkerOptions
from toril.transport import ConnectionPolicy
from toril.transport.policy import checked_policy
from toril.transport.waiting import waited
from toril.worker._observer import WorkerObserver

# The longest delay of a worker that is stopping and has outcomes to settle.
LAST_PAUSE = 1.0
_RECONNECT_OPTIONS = ("reconnect_delay", "max_reconnect_delay", "max_reconnect_attempts")


def policy_of(options: WorkerOptions, policy: ConnectionPolicy | None) -> ConnectionPolicy:
    """The policy of a worker: the given one, or the default one with the worker's own three options."""
    given = {name: getattr(options, name) for name in _RECONNECT_OPTIONS if name in options.given}
    if policy is None:
        return ConnectionPolicy(**given)
    if given:
        names = ", ".join(given)
        raise InvalidOption("policy", f"is given together with {names}", f"set {names} in the policy")
    return checked_policy(policy)


def one_attempt(policy: ConnectionPolicy) -> ConnectionPolicy:
    """The policy of a worker's own connections: calls fail at once, and the worker reconnects by itself."""
    return replace(policy, call_attempts=1)


class Reconnector(Generic[D]):
    """Opens the backend again until the server answers, the worker stops, or the limit is reached."""

    def __init__(self, backend: Backend[D], policy: ConnectionPolicy, observer: WorkerObserver[D]) -> None:
        self._backend = backend
        self._policy = policy
        self._observer = observer
        self._attempts = 0
        self._lost_at: float | None = None
        self._gave_up = False
        self._stop = asyncio.Event()
        self._end = asyncio.Event()

    @property
    def attempts(self) -> int:
        return self._attempts

    @property
    def gave_up(self) -> bool:
        """The limit was reached, and the server has not answered since."""
        return self._gave_up

    def answered(self) -> float | None:
        """The server answered; returns how long the outage was, None if there was none."""
        if self._lost_at is None:
            return None
        seconds, self._lost_at = time.monotonic() - self._lost_at, None
        self._observer.outage_ended(self._attempts, seconds)
        self._attempts, self._gave_up = 0, False
        return seconds

    def stop(self) -> None:
        """Ends the current delay: the next attempt follows at once, later ones at short intervals."""
        self._stop.set()

    def end(self) -> None:
        """Ends all attempts."""
        self._stop.set()
        self._end.set()

    async def restore(self, error: TorilError) -> bool:
        """Returns True when the server can be reached again, False when the attempts ended without success."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._observer.outage_began(error)
        if self._gave_up:
            await self._pause(LAST_PAUSE)
            return False
        delay = self._policy.delay_before(self._attempts)
        while not self._exhausted():
            self._attempts += 1
            await self._pause(delay)
            if self._end.is_set():
                return False
            self._observer.reconnect_attempt()
            try:
                await self._backend.open()
            except TorilError:
                delay = self._policy.delay_before(self._attempts)
                self._observer.reconnect_failed(self._attempts, None if self._exhausted() else delay)
                if self._stop.is_set():
                    return False
            else:
                return True
        self._gave_up = True
        self._observer.gave_up(self._attempts)
        return False

    def _exhausted(self) -> bool:
        limit = self._policy.max_reconnect_attempts
        return limit > 0 and self._attempts >= limit

    async def _pause(self, seconds: float) -> None:
        stopping = self._stop.is_set()
        event, limit = (self._end, min(seconds, LAST_PAUSE)) if stopping else (self._stop, seconds)
        await waited(limit, event)
