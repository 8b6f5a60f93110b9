"""Operations on a job as generators: they yield requests to the server and are sent the results, without any I/O.

Guarantee: an operation is written once; the asyncio and the blocking job only carry out its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from toril.commands.command import Command
from toril.errors import TorilError

if TYPE_CHECKING:
    from toril.transport import AsyncTransport, BlockingTransport

T = TypeVar("T")


class _ServerTime:
    """Requests the server's time in milliseconds; a transport mostly knows it without a round trip."""


NOW_MS: Final = _ServerTime()


@dataclass(frozen=True, slots=True)
class ThreadCall:
    """Requests the result of a function that may take long: an event loop runs it in a thread."""

    function: Callable[[], Any]


OperationRequest: TypeAlias = Command[Any] | Sequence[Command[Any]] | _ServerTime | ThreadCall
"""One command, several in one pipeline, the time, or a call of a function."""

Operation: TypeAlias = Generator[OperationRequest, Any, T]
"""Its results are the value of the command, the list of values, or milliseconds; errors are raised in the caller."""


async def run_operation(transport: AsyncTransport, operation: Operation[T]) -> T:
    """Carries out the requests of an operation in the event loop; returns its result."""
    result: object = None
    try:
        while True:
            request = operation.send(result)
            if isinstance(request, Command):
                result = await transport.run(request)
            elif isinstance(request, _ServerTime):
                result = await transport.now_ms()
            elif isinstance(request, ThreadCall):
                result = await asyncio.to_thread(request.function)
            else:
                result = _values(await transport.run_many(request))
    except StopIteration as end:
        return cast("T", end.value)


def run_operation_blocking(transport: BlockingTransport, operation: Operation[T]) -> T:
    """Carries out the requests of an operation in this thread; returns its result."""
    result: object = None
    try:
        while True:
            request = operation.send(result)
            if isinstance(request, Command):
                result = transport.run(request)
            elif isinstance(request, _ServerTime):
                result = transport.now_ms()
            elif isinstance(request, ThreadCall):
                result = request.function()
            else:
                result = _values(transport.run_many(request))
    except StopIteration as end:
        return cast("T", end.value)


def _values(results: list[object]) -> list[object]:
    for result in results:
        if isinstance(result, TorilError):
            raise result
    return results
