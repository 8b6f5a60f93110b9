"""What a connection keeps for each write until its replies have come: `PendingReplies` and `PendingCall`.

Guarantee: a pending call calls `on_reply` once; an error reply or a lost reply goes to the retry protocol first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from toril.commands.command import Command
from toril.errors import Interrupted, TorilError
from toril.transport._retry_protocol import Reply, decoded
from toril.transport.address import Node

T = TypeVar("T")

OnReply: TypeAlias = Callable[[Any], None]  # its argument is the value of the command or a `TorilError`


class Pending(Protocol):
    """One write that waits for `missing` replies."""

    missing: int
    deadline: float  # in the event loop's time; set when it is written
    written: bool

    @property
    def cancelled(self) -> bool:
        """Whether the waiter was cancelled: the request is not written if it was not yet."""

    def take(self, reply: Reply) -> None:
        """Takes one reply."""

    def fail(self, error: Exception) -> None:
        """Takes `error` (a `NotSent` or a `Lost`) in place of all replies that are missing."""


class PendingReplies:
    """A write of several requests; its future gets the list of replies."""

    __slots__ = ("deadline", "future", "missing", "replies", "written")

    def __init__(self, future: asyncio.Future[list[Reply]], missing: int) -> None:
        self.future = future
        self.replies: list[Reply] = []
        self.missing = missing
        self.deadline = 0.0
        self.written = False

    @property
    def cancelled(self) -> bool:
        return self.future.cancelled()

    def take(self, reply: Reply) -> None:
        self.replies.append(reply)
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result(self.replies)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_result([*self.replies, *([error] * self.missing)])

    async def wait(self, *, firm: bool) -> list[Reply]:
        """Returns the replies. A firm wait that is cancelled after the write continues until they have come."""
        if not firm:
            return await self.future
        while True:
            try:
                return await asyncio.shield(self.future)
            except asyncio.CancelledError:
                if not self.written:
                    self.future.cancel()
                if self.future.cancelled():
                    raise


class CallRetrier(Protocol):
    """Follows the retry protocol for a call after an error: the transport."""

    def retry(self, call: PendingCall, error: Exception) -> None:
        """Sends the call again, or ends it with the error."""


class PendingCall:
    """One submitted command. While the retry protocol runs for it, `task` is set."""

    __slots__ = (
        "_retrier",
        "cancelled",
        "command",
        "deadline",
        "firm",
        "node",
        "on_reply",
        "task",
        "written",
    )

    missing = 1

    def __init__(
        self,
        command: Command[object],
        on_reply: OnReply,
        retrier: CallRetrier,
        node: Node | None,
        *,
        firm: bool,
    ) -> None:
        self.command = command
        self.on_reply = on_reply
        self._retrier = retrier
        self.node = node
        self.firm = firm
        self.task: asyncio.Task[list[object]] | None = None
        self.cancelled = False
        self.deadline = 0.0
        self.written = False

    def take(self, reply: Reply) -> None:
        if self.cancelled:
            return
        if isinstance(reply, Exception):
            self._retrier.retry(self, reply)
        else:
            self.on_reply(decoded(self.command, reply))

    def fail(self, error: Exception) -> None:
        self.take(error)

    def finish(self, task: asyncio.Task[list[object]]) -> None:
        """Takes the result of the retry protocol, when its task is done."""
        if task.cancelled():
            self.on_reply(Interrupted("the call was interrupted"))
        elif (error := task.exception()) is None:
            self.on_reply(task.result()[0])
        elif isinstance(error, TorilError):  # the transport was closed meanwhile
            self.on_reply(error)
        else:
            failed = TorilError(f"{self.command.name} could not be sent: {error!r}")
            failed.__cause__ = error
            self.on_reply(failed)

    def cancel(self) -> None:
        """Ends the call. A firm one whose command is written continues until its reply has come."""
        if self.task is not None:
            self.task.cancel()
        elif not (self.firm and self.written):
            self.cancelled = True
            self.on_reply(Interrupted("the call was cancelled"))


async def result_of_firm_call(call: PendingCall, future: asyncio.Future[T]) -> T:
    """Returns the result of a firm call, also if the waiting task is cancelled after the command was written."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
            call.cancel()
    result = future.result()
    if cancelled is not None and isinstance(result, Interrupted):
        raise cancelled
    return result


def resolve(future: asyncio.Future[T], value: T) -> None:
    """Sets the result of a future unless its waiter was cancelled."""
    if not future.done():
        future.set_result(value)
