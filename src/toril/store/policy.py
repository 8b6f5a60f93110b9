"""How long we wait for the server, and how we come back after losing it.

Guarantee: no call waits for ever, and a lost server is asked again ever more rarely, never in a tight loop.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from toril.contract.backoff import reconnect_delay
from toril.contract.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionPolicy:
    """Time-outs in seconds, and the backoff between attempts to reconnect."""

    connect_timeout: float = 5.0
    # A script that ran without our hearing of it costs a recovery, so its reply may take longer than a plain read's.
    command_timeout: float = 5.0
    # What a blocking read may overstay: the server's timer and the way back.
    block_margin: float = 2.0
    reconnect_delay: float = 0.1
    max_reconnect_delay: float = 30.0
    reconnect_jitter: float = 0.2
    max_reconnect_attempts: int = 0  # 0: without limit (workers); single calls have `call_attempts`
    call_attempts: int = 5  # how often one call of an application is tried before its error is raised
    max_connections: int = 20  # ten for each core of a small machine; blocking reads have their own

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "command_timeout", "block_margin", "reconnect_delay"):
            if not getattr(self, name) > 0:
                raise InvalidOption(name, "must be above zero", "give seconds, such as 5.0")
        if self.max_reconnect_delay < self.reconnect_delay:
            raise InvalidOption(
                "max_reconnect_delay", "is below reconnect_delay", "give at least the first delay"
            )
        if not 0 <= self.reconnect_jitter < 1:
            raise InvalidOption("reconnect_jitter", "must be from 0 up to 1", "give a part, such as 0.2")
        if self.max_reconnect_attempts < 0 or self.call_attempts < 1:
            raise InvalidOption("call_attempts", "must be at least 1", "give a whole number")

    def delay_before(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds before attempt number `attempt`; the first is 0."""
        return reconnect_delay(
            attempt,
            initial=self.reconnect_delay,
            maximum=self.max_reconnect_delay,
            jitter=self.reconnect_jitter,
            rng=chance,
        )
