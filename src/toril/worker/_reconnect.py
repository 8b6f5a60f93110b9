"""Coming back after Redis was lost.

Guarantee: attempts grow rarer up to the limit and are said once each; the count starts anew only when the server has
answered a real call, so a server that accepts and drops connections is not asked in a tight loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from toril.errors import InvalidOption, TorilError
from toril.protocol.worker_options import WorkerOptions
from toril.transport import ConnectionPolicy
from toril.transport.policy import checked_policy
from toril.transport.waiting import waited
from toril.worker._log import WorkerLog

# A worker that is stopping with results in hand tries this often: its time is short, but a tight loop helps nobody.
LAST_PAUSE = 1.0
_RECONNECT_OPTIONS = ("reconnect_delay", "max_reconnect_delay", "max_reconnect_attempts")


def policy_of(options: WorkerOptions, policy: ConnectionPolicy | None) -> ConnectionPolicy:
    """The policy of a worker: the one that was given, or the default one with the worker's own three options."""
    said = {name: getattr(options, name) for name in _RECONNECT_OPTIONS if name in options.given}
    if policy is None:
        return ConnectionPolicy(**said)
    if said:
        names = ", ".join(said)
        raise InvalidOption("policy", f"is given together with {names}", f"say {names} in the policy")
    return checked_policy(policy)


class Reconnector:
    """Tries until the server answers, the worker stops, or the limit is reached."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        *,
        policy: ConnectionPolicy,
        log: WorkerLog,
        on_attempt: Callable[[], Any],
    ) -> None:
        self._connect = connect
        self._policy = policy
        self._log = log
        self._on_attempt = on_attempt
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
        """The server answered; the value is how long it had been away, None if it had not."""
        if self._lost_at is None:
            return None
        away, self._lost_at = time.monotonic() - self._lost_at, None
        self._log.reconnected(self._attempts, away)
        self._attempts, self._gave_up = 0, False
        return away

    def stop(self) -> None:
        """Ends the pause that is running: what is in hand is tried once more at once, then at short intervals."""
        self._stop.set()

    def end(self) -> None:
        """Nobody waits for the server any more."""
        self._stop.set()
        self._end.set()

    async def restore(self, trouble: TorilError) -> bool:
        """True when the server can be reached again; False when we gave up."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._log.disconnected(trouble)
        if self._gave_up:
            await self._pause(LAST_PAUSE)
            return False
        delay = self._policy.delay_before(self._attempts)
        while not self._exhausted():
            self._attempts += 1
            await self._pause(delay)
            if self._end.is_set():
                return False
            self._on_attempt()
            try:
                await self._connect()
            except TorilError:
                delay = self._policy.delay_before(self._attempts)
                self._log.reconnecting(self._attempts, None if self._exhausted() else delay)
                if self._stop.is_set():
                    return False
            else:
                return True
        self._gave_up = True
        self._log.gave_up(self._attempts)
        return False

    def _exhausted(self) -> bool:
        limit = self._policy.max_reconnect_attempts
        return limit > 0 and self._attempts >= limit

    async def _pause(self, seconds: float) -> None:
        stopping = self._stop.is_set()
        woken, limit = (self._end, min(seconds, LAST_PAUSE)) if stopping else (self._stop, seconds)
        await waited(limit, woken)
