"""Blocking reads: a connection of its own for commands that wait on the server.

Guarantee: one call at a time. A call can be ended early without losing what it has popped. A call whose task was
cancelled is ended on the server too, so that the next one does not wait behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, TypeVar, cast

from toril.commands.command import Command
from toril.errors import Closed, TorilError
from toril.transport._connection import Connection
from toril.transport._retry_protocol import (
    Disconnect,
    Lost,
    NotSent,
    Pause,
    Reply,
    Request,
    RetryProtocol,
    Send,
    Step,
    StepResult,
)
from toril.transport._slots import Node
from toril.transport.waiting import cancel_and_wait, succeeded

if TYPE_CHECKING:
    from toril.transport._async import AsyncTransport

T = TypeVar("T")

# Seconds before CLIENT UNBLOCK is sent again: the server had not received the blocking call yet.
UNBLOCK_AGAIN: Final = 0.005


class Reader:
    """A connection for blocking reads: one call at a time, ended early by `unblock`."""

    def __init__(self, transport: AsyncTransport, name: str | None) -> None:
        self._transport = transport
        self._name = name
        self.connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._node: Node | None = None
        self._client_id: int | None = None
        self._blocked: object | None = None  # identifies the call that is blocked now
        self._closed = False

    @property
    def blocked(self) -> bool:
        """Whether a call waits for the server's reply; not while the reader connects for it."""
        return self._blocked is not None

    async def run(self, command: Command[T], timeout: float) -> T:
        """Runs a command that may block for `timeout` seconds; returns its value or raises its error."""
        steps = RetryProtocol((command,), self._transport.policy, self._transport.slots).steps()
        result: StepResult = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                (value,) = end.value
                break
            result = await self._take_step(step, timeout)
        if isinstance(value, TorilError):
            raise value
        return cast("T", value)

    async def _take_step(self, step: Step, timeout: float) -> StepResult:
        policy = self._transport.policy
        match step:
            case Send(node, [("CLUSTER", "SLOTS")] as requests):
                return await self._transport.send(node, requests, policy.command_timeout)
            case Send(node, requests):
                return await self._send(node, requests, timeout + policy.block_margin)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Disconnect():
                await self._disconnect()
        return None

    async def _send(self, node: Node | None, requests: list[Request], timeout: float) -> list[Reply]:
        connection = self.connection
        if connection is None or connection.closed or self._node != node:
            try:
                connection = await self._connect(node)
            except NotSent as error:
                return [error] * len(requests)
        self._blocked = call = object()
        try:
            return await connection.exchange(requests, timeout)
        except asyncio.CancelledError:
            self._transport.spawn(self._unblock_cancelled(connection, self._client_id))
            raise
        finally:
            if self._blocked is call:
                self._blocked = None

    async def _connect(self, node: Node | None) -> Connection:
        self._refuse_when_closed()  # a call that is repeated after `close` ends here
        await self._disconnect()
        # Kept as attributes, so that `close` ends the attempt and the connection.
        self._connecting = connecting = asyncio.create_task(self._transport.connect_to(node, self._name))
        try:
            await asyncio.wait({connecting})
        except asyncio.CancelledError:
            self._transport.spawn(_cancel_connecting(connecting))
            raise
        finally:
            self._connecting = None
        self._refuse_when_closed()  # it may have been closed meanwhile
        self.connection, self._node = connecting.result(), node
        return await self._read_client_id(self.connection)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Closed("the reader was closed")

    async def _read_client_id(self, connection: Connection) -> Connection:
        """Reads the connection's id on the server: `unblock` needs it."""
        try:
            (reply,) = await connection.exchange([("CLIENT", "ID")], self._transport.policy.command_timeout)
        except asyncio.CancelledError:
            self.connection = None
            self._transport.spawn(connection.close())
            raise
        if isinstance(reply, (NotSent, Lost)):
            self._refuse_when_closed()  # it may have been closed meanwhile: no other attempt is needed
            await self._disconnect()
            raise NotSent(str(reply))
        self._client_id = reply if isinstance(reply, int) else None
        return connection

    async def _unblock_cancelled(self, connection: Connection, client_id: int | None) -> None:
        """Ends a call whose task was cancelled, so that the next one does not wait behind it."""
        with contextlib.suppress(TorilError):  # the transport was closed meanwhile, and with it the call
            while connection.is_busy and client_id is not None and not self._closed:
                if await self._send_unblock(client_id):
                    return

    async def unblock(self) -> None:
        """Makes a blocked call return at once, as if its time were over; nothing that it has popped is lost."""
        call = self._blocked
        while call is not None and self._blocked is call and self._client_id is not None:
            if await self._send_unblock(self._client_id):
                return

    async def _send_unblock(self, client_id: int) -> bool:
        """Returns whether there is no need to send it again: the call has ended, or the server cannot be asked."""
        requests: list[Request] = [("CLIENT", "UNBLOCK", client_id)]
        (reply,) = await self._transport.send(self._node, requests, self._transport.policy.command_timeout)
        if reply == 0:  # the server has not received the call yet, or its reply is on the way
            await asyncio.sleep(UNBLOCK_AGAIN)
        return reply != 0

    async def _disconnect(self) -> None:
        connection, self._client_id = self.connection, None
        if connection is not None:
            await connection.close()
            if self.connection is connection:
                self.connection = None

    async def close(self) -> None:
        """Ends the call in progress and closes the connection."""
        self._closed = True
        self._transport.forget_reader(self)
        if self._connecting is not None:
            await _cancel_connecting(self._connecting)
        await self._disconnect()


async def _cancel_connecting(connecting: asyncio.Task[Connection]) -> None:
    await cancel_and_wait(connecting)
    if succeeded(connecting):
        await connecting.result().close()
