"""The connection policy: time-outs, and the delays between attempts to connect.

Guarantee: no call waits for ever, and the delay between attempts grows up to a limit. A policy is validated when it is
created; the error names the field.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toril.errors import InvalidOption
from toril.protocol.backoff import reconnect_delay
from toril.protocol.duration import to_seconds
from toril.protocol.given_fields import seconds, take_defaults
from toril.protocol.option_names import knows_its_options
from toril.protocol.option_parts import MAX_COUNT, check_integer

if TYPE_CHECKING:
    from toril.protocol.given_fields import Seconds


@knows_its_options("a field of ConnectionPolicy")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionPolicy:
    """Time-outs (seconds or `timedelta`), and the backoff between attempts to reconnect."""

    connect_timeout: Seconds = seconds(5.0)
    # A lost reply to a script costs a recovery, so replies may take longer than plain reads need.
    command_timeout: Seconds = seconds(5.0)
    # How much longer than asked a blocking read may take: the server's timer and the round trip.
    block_margin: Seconds = seconds(2.0)
    reconnect_delay: Seconds = seconds(0.1)
    # The limit of the doubling. The jitter is applied after it, or all clients at the limit would reconnect at once.
    max_reconnect_delay: Seconds = seconds(30.0)
    reconnect_jitter: float = 0.2  # ±20 %
    max_reconnect_attempts: int = 0  # 0: without limit (workers, events); single calls have `call_attempts`
    call_attempts: int = 5  # how often one call of an application is tried before its error is raised
    max_connections: int = (
        20  # idle connections kept by a blocking transport: ten for each core of a small machine
    )

    def __post_init__(self) -> None:
        take_defaults(self, _DURATIONS)
        for name in _DURATIONS:
            object.__setattr__(self, name, to_seconds(name, getattr(self, name), positive=True))
        if self.max_reconnect_delay < self.reconnect_delay:
            raise InvalidOption(
                "max_reconnect_delay", "is below reconnect_delay", "give at least the first delay"
            )
        for name, least in _INTEGERS.items():
            check_integer(name, getattr(self, name), least, MAX_COUNT)
        _check_jitter(self.reconnect_jitter)

    def delay_before(self, attempt: int, chance: Callable[[], float] = random.random) -> float:
        """Returns the seconds before an attempt; the number of the first is 0."""
        return reconnect_delay(
            attempt,
            initial=self.reconnect_delay,
            maximum=self.max_reconnect_delay,
            jitter=self.reconnect_jitter,
            rng=chance,
        )


_DURATIONS = (
    "connect_timeout",
    "command_timeout",
    "block_margin",
    "reconnect_delay",
    "max_reconnect_delay",
)
_INTEGERS = {"max_reconnect_attempts": 0, "call_attempts": 1, "max_connections": 1}


def _check_jitter(value: object) -> None:
    # With 1 a delay could be 0; the comparison is written so that nan fails it.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise InvalidOption(
            "reconnect_jitter", f"is {value!r}", "give a part from 0 up to, not including, 1: 0.2 is ±20 %"
        )


def checked_policy(policy: object) -> ConnectionPolicy:
    """Returns the policy that a caller gave as `policy=`, or the default one."""
    if policy is None:
        return ConnectionPolicy()
    if not isinstance(policy, ConnectionPolicy):
        raise InvalidOption("policy", f"is a {type(policy).__name__}", "give ConnectionPolicy(...)")
    return policy
