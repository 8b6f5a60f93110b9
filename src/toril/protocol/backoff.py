"""How long to wait before the next attempt: of a job, of an envelope, of a connection.

Guarantee: every delay is a function of its arguments and of the random numbers passed in; nothing sleeps,
and no number of attempts overflows.

    job        exponential  min(delay · 2^(n−1) · (0.8 … 1.2), cap)      n = attempts, this one included
               fixed        delay
               jitter=j     BullMQ's own: (1−j … 1) of the delay; it replaces the worker's ±20 %
    envelope   min(base · 2^attempt + (0 … 1), 300 s)
    reconnect  min(0.1 · 2^attempt, 30 s) · (0.8 … 1.2)
"""

from __future__ import annotations

import functools
import inspect
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from toril.errors import InvalidOption, MalformedValue, UnknownBackoff
from toril.protocol.duration import Duration, to_ms, to_seconds
from toril.protocol.json_types import JsonFields, JsonObject
from toril.protocol.keys import check_text
from toril.protocol.option_names import knows_its_options
from toril.protocol.option_warnings import warn_option

Random: TypeAlias = Callable[[], float]
"""Gives numbers from 0 up to, but not including, 1."""

Given: TypeAlias = Duration | None
BackoffFunction: TypeAlias = (
    Callable[[int, BaseException | None], Given | Awaitable[Given]]
    | Callable[[int, BaseException | None, Any], Given | Awaitable[Given]]
)
"""(attempts made, error) or (attempts made, error, job) → the delay before the next attempt, or `None` to give up.

A plain function runs in the event loop; a coroutine function is awaited. The job is given to a function that has a
parameter `job`, or three parameters that must be given.
"""

_MAX_DOUBLINGS = 60  # any base delay has long reached its cap by then; keeps 2^n a small number
_SUSPICIOUS_SECONDS = 3600.0  # above an hour, milliseconds were probably given


@knows_its_options("a field of Backoff")
@dataclass(frozen=True, slots=True)
class Backoff:
    """The backoff of one job. Make it with `fixed`, `exponential` or `custom`."""

    type: str
    delay: float = 0.0  # seconds
    jitter: float | None = None  # 0 … 1, downwards; None leaves it to the worker
    max_delay: float | None = None  # seconds; None leaves it to the worker

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: float | None = None) -> Backoff:
        """The same pause before every attempt; 0 is none."""
        none = to_seconds("backoff.delay", delay) == 0
        return cls("fixed", 0.0 if none else _base_delay(delay), _checked_jitter(jitter))

    @classmethod
    def exponential(
        cls, delay: Duration = 1.0, *, max_delay: Duration | None = None, jitter: float | None = None
    ) -> Backoff:
        """A pause that doubles with every attempt, up to `max_delay` (default: the worker's, one hour)."""
        base = _base_delay(delay)
        cap = None if max_delay is None else to_seconds("backoff.max_delay", max_delay, positive=True)
        if cap is not None and cap < base:
            raise InvalidOption("backoff.max_delay", "is below backoff.delay", "raise it or lower the delay")
        return cls("exponential", base, _checked_jitter(jitter), cap)

    @classmethod
    def custom(cls, name: str, delay: Duration = 0.0) -> Backoff:
        """A pause computed by the worker's function of that name (`backoffs={name: function}`)."""
        if check_text("backoff.type", name) in ("fixed", "exponential"):
            raise InvalidOption("backoff.type", f"{name!r} is built in", f"use Backoff.{name}(…)")
        return cls(name, to_seconds("backoff.delay", delay))

    def to_wire(self) -> JsonObject:
        """BullMQ's spelling, in milliseconds."""
        wire: JsonObject = {"type": self.type}
        if self.delay or self.type in ("fixed", "exponential"):
            wire["delay"] = to_ms(self.delay)
        if self.jitter is not None:
            wire["jitter"] = self.jitter
        if self.max_delay is not None:
            wire["maxDelay"] = to_ms(self.max_delay)
        return wire

    @classmethod
    def from_wire(cls, wire: object) -> Backoff | None:
        """What a job of any client carries: nothing, a number of milliseconds, or an object."""
        if wire is None or wire is False:
            return None
        if isinstance(wire, Mapping):
            kind = wire.get("type")
            if not isinstance(kind, str) or not kind:
                raise MalformedValue("opts.backoff.type", "is not a name")
            delay, jitter, cap = (_wire_number(wire, name) for name in ("delay", "jitter", "maxDelay"))
            return cls(kind, (delay or 0.0) / 1000, jitter, None if cap is None else cap / 1000)
        return cls("fixed", (_wire_number({"delay": wire}, "delay") or 0.0) / 1000)


def _base_delay(value: Duration) -> float:
    delay = to_seconds("backoff.delay", value, positive=True)
    if delay > _SUSPICIOUS_SECONDS:
        problem = f"backoff.delay is {delay:g} s, more than an hour: durations are seconds, not milliseconds"
        warn_option(problem)
    return delay


def _checked_jitter(jitter: object) -> float | None:
    if jitter is None:
        return None
    if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
        raise InvalidOption("backoff.jitter", "is not a number from 0 to 1", "0.2 means up to 20 % shorter")
    return float(jitter)


def _wire_number(wire: JsonFields, name: str) -> float | None:
    value = wire.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        raise MalformedValue(f"opts.backoff.{name}", "is not a number of 0 or more")
    return float(value)


def next_delay(
    attempts_made: int,
    backoff: Backoff | None,
    *,
    jitter: float = 0.2,
    max_delay: float = 3600.0,
    retry_after: float | None = None,
    given: Given = None,
    rng: Random = random.random,
) -> float | None:
    """Seconds until the next attempt, or `None` if a custom function gave up.

    `attempts_made` counts the attempt that just failed. `jitter` and `max_delay` are the worker's.
    `retry_after` is the delay that the service requested, the least possible. `given` is what the function of a custom
    backoff returned.
    """
    if backoff is None:
        delay = 0.0
    elif backoff.type == "fixed":
        delay = _jittered_downwards(backoff.delay, backoff.jitter or 0.0, rng)
    elif backoff.type == "exponential":
        delay = _exponential(attempts_made, backoff, jitter, max_delay, rng)
    elif given is None:
        return None
    else:
        delay = to_seconds(f"backoff {backoff.type!r}", given)
    return delay if retry_after is None else max(delay, retry_after)


def _exponential(attempts_made: int, backoff: Backoff, jitter: float, max_delay: float, rng: Random) -> float:
    delay = backoff.delay * _power_of_two(attempts_made - 1)
    if backoff.jitter is not None:
        delay = _jittered_downwards(delay, backoff.jitter, rng)
    elif jitter > 0:
        delay *= 1 - jitter + 2 * jitter * rng()
    return min(delay, max_delay if backoff.max_delay is None else backoff.max_delay)


def _jittered_downwards(delay: float, jitter: float, rng: Random) -> float:
    return delay * (1 - jitter + jitter * rng()) if jitter > 0 else delay


def custom_function(
    backoff: Backoff | None, functions: Mapping[str, BackoffFunction]
) -> BackoffFunction | None:
    """The function that computes this backoff; None when it is built in. Raises when there is none of its name."""
    if backoff is None or backoff.type in ("fixed", "exponential"):
        return None
    if backoff.type not in functions:
        raise UnknownBackoff(backoff.type)
    return functions[backoff.type]


def call_backoff(
    function: BackoffFunction, attempts_made: int, error: BaseException | None, job: object
) -> Given | Awaitable[Given]:
    """Calls a custom function in the form that it has."""
    ask: Callable[..., Given | Awaitable[Given]] = function
    try:
        form = _known_form(function)
    except TypeError:  # an object that has no hash
        form = _call_form(function)
    if form == "named":
        return ask(attempts_made, error, job=job)
    return ask(attempts_made, error, job) if form == "third" else ask(attempts_made, error)


def is_backoff_function(function: BackoffFunction) -> bool:
    """Returns whether `call_backoff` can call it, as far as its signature is known."""
    signature, form = _signature(function), _call_form(function)
    if signature is None:
        return True
    more, words = ((None,) if form == "third" else ()), ({"job": None} if form == "named" else {})
    try:
        signature.bind(1, None, *more, **words)
    except TypeError:
        return False
    return True


def _signature(function: BackoffFunction) -> inspect.Signature | None:
    """How a function is called; that of a wrapped function only if it takes any arguments. None: not known."""
    try:
        own = inspect.signature(function, follow_wrapped=False)
        takes_all = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in own.parameters.values())
        return inspect.signature(function) if takes_all else own
    except ValueError:
        return None


_Form: TypeAlias = Literal["plain", "third", "named"]


def _call_form(function: BackoffFunction) -> _Form:
    """The job is given to a parameter of that name, or to a third one that must be given."""
    signature, parameter = _signature(function), inspect.Parameter
    if signature is None:
        return "plain"
    named = signature.parameters.get("job")
    if named is not None and named.kind is parameter.KEYWORD_ONLY:
        return "named"
    positional = (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    third = [one for one in signature.parameters.values() if one.kind in positional][2:3]
    wanted = any(one.name == "job" or one.default is parameter.empty for one in third)
    return "third" if wanted else "plain"


_known_form = functools.lru_cache(maxsize=64)(_call_form)


def _power_of_two(exponent: int) -> float:
    return float(2 ** max(0, min(exponent, _MAX_DOUBLINGS)))


def envelope_delay(
    attempt: int, *, base: float = 1.0, max_delay: float = 300.0, rng: Random = random.random
) -> float:
    """Seconds until a list or stream job is tried again; `attempt` counts from 0."""
    return min(base * _power_of_two(attempt) + rng(), max_delay)


def reconnect_delay(
    attempt: int,
    *,
    initial: float = 0.1,
    maximum: float = 30.0,
    jitter: float = 0.2,
    rng: Random = random.random,
) -> float:
    """Seconds until the next attempt to reach Redis; `attempt` counts from 0."""
    return min(initial * _power_of_two(attempt), maximum) * (1 - jitter + 2 * jitter * rng())
