"""What an operation on a job asks of the server, one thing after another, without any I/O.

Guarantee: an operation is written once, as a generator of asks; the asyncio and the blocking job only answer them, so
the two can never differ.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from toril.commands.command import Command
from toril.errors import TorilError
from toril.transport import AsyncTransport, BlockingTransport

T = TypeVar("T")


class _ServerTime:
    """Asks for the server's time in milliseconds, which a store mostly knows without asking."""


NOW_MS: Final = _ServerTime()

Ask: TypeAlias = Command[Any] | Sequence[Command[Any]] | _ServerTime
"""One command, several in one pipeline, or the time."""

Steps: TypeAlias = Generator[Ask, Any, T]


async def run_steps(transport: AsyncTransport, steps: Steps[T]) -> T:
    """Does what the steps ask, in the event loop."""
    answer: Any = None
    try:
        while True:
            ask = steps.send(answer)
            if isinstance(ask, Command):
                answer = await transport.run(ask)
            elif isinstance(ask, _ServerTime):
                answer = await transport.now_ms()
            else:
                answer = _values(await transport.run_many(ask))
    except StopIteration as end:
        return cast("T", end.value)


def run_steps_blocking(transport: BlockingTransport, steps: Steps[T]) -> T:
    """Does what the steps ask, in this thread."""
    answer: Any = None
    try:
        while True:
            ask = steps.send(answer)
            if isinstance(ask, Command):
                answer = transport.run(ask)
            elif isinstance(ask, _ServerTime):
                answer = transport.now_ms()
            else:
                answer = _values(transport.run_many(ask))
    except StopIteration as end:
        return cast("T", end.value)


def _values(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, TorilError):
            raise result
    return results
