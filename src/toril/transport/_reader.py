"""Blocking reads: a connection of its own for commands that wait for something to come.

Guarantee: one call at a time; a call can be ended early without losing what it has popped. One whose caller was
cancelled is ended on the server, too, so that the next does not wait behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

from toril.commands.command import Command
from toril.errors import Closed, TorilError
from toril.transport._connection import Link
from toril.transport._retry_protocol import Drop, Lost, NotSent, Pause, Send, converse
from toril.transport._slots import Node
from toril.transport.waiting import call_off, succeeded

if TYPE_CHECKING:
    from toril.transport._async import AsyncTransport

T = TypeVar("T")

# Seconds until the server is asked again to end a blocked call that it had not received yet.
UNBLOCK_AGAIN = 0.005


class Reader:
    """A connection for blocking reads: one call at a time, woken early by `unblock`, never cancelled in flight."""

    def __init__(self, transport: AsyncTransport, name: str | None) -> None:
        self._transport = transport
        self._name = name
        self.link: Link | None = None
        self._dialing: asyncio.Task[Link] | None = None
        self._node: Node | None = None
        self._client_id: int | None = None
        self._blocked: object | None = None  # stands for the call that is blocked now
        self._closed = False

    @property
    def blocked(self) -> bool:
        """Whether a call waits for the server's answer; not while the reader connects for it."""
        return self._blocked is not None

    async def run(self, command: Command[T], timeout: float) -> T:
        """Runs a command that may block for `timeout` seconds; an error of the connection is raised at once."""
        transport = self._transport
        policy = transport.policy
        conversation = converse((command,), policy, transport.slots)
        outcome: Any = None
        try:
            while True:
                effect = conversation.send(outcome)
                match effect:
                    case Send(node, [("CLUSTER", "SLOTS")] as words):
                        outcome = await transport.send(node, words, policy.command_timeout)
                    case Send(node, words):
                        outcome = await self._send(node, words, timeout + policy.block_margin)
                    case Pause(seconds):
                        outcome = None
                        await asyncio.sleep(seconds)
                    case Drop():
                        outcome = None
                        await self._forget()
        except StopIteration as end:
            (result,) = end.value
        if isinstance(result, TorilError):
            raise result
        return cast("T", result)

    async def _send(self, node: Node | None, words: list[Any], timeout: float) -> list[Any]:
        link = self.link
        if link is None or link.closed or self._node != node:
            try:
                link = await self._open(node)
            except NotSent as error:
                return [error] * len(words)
        self._blocked = call = object()
        try:
            return await link.exchange(words, timeout)
        except asyncio.CancelledError:
            self._transport.spawn(self._let_go(link, self._client_id))
            raise
        finally:
            if self._blocked is call:
                self._blocked = None

    async def _open(self, node: Node | None) -> Link:
        self._refuse_when_closed()  # a call that is still being repeated ends here
        await self._forget()
        # UnrenewedLocks, and the link before its first exchange: whoever closes the reader meanwhile ends both.
        self._dialing = dialing = asyncio.create_task(self._transport.dial(node, self._name))
        try:
            await asyncio.wait({dialing})
        except asyncio.CancelledError:
            self._transport.spawn(_undo(dialing))
            raise
        finally:
            self._dialing = None
        self._refuse_when_closed()  # while we were connecting
        self.link, self._node = dialing.result(), node
        return await self._introduced(self.link)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Closed("the reader was closed")

    async def _introduced(self, link: Link) -> Link:
        """Learns the id by which the server knows the link: without it no call could be ended early."""
        try:
            (reply,) = await link.exchange([("CLIENT", "ID")], self._transport.policy.command_timeout)
        except asyncio.CancelledError:
            self.link = None
            self._transport.spawn(link.close())
            raise
        if isinstance(reply, (NotSent, Lost)):
            self._refuse_when_closed()  # while we asked: nobody waits for another attempt
            await self._forget()
            raise NotSent(str(reply))
        self._client_id = reply if isinstance(reply, int) else None
        return link

    async def _let_go(self, link: Link, client_id: int | None) -> None:
        """Ends a call that nobody waits for any more, so that the next one does not wait behind it."""
        words = [("CLIENT", "UNBLOCK", client_id)]
        with contextlib.suppress(TorilError):  # the store was closed meanwhile, and with it the call
            while link.busy and client_id is not None and not self._closed:
                (reply,) = await self._transport.send(
                    self._node, words, self._transport.policy.command_timeout
                )
                if reply != 0:
                    return
                await asyncio.sleep(UNBLOCK_AGAIN)

    async def unblock(self) -> None:
        """Lets a blocked call return at once, as if its time were over; nothing it has popped is lost."""
        call = self._blocked
        while call is not None and self._blocked is call and self._client_id is not None:
            words = ("CLIENT", "UNBLOCK", self._client_id)
            (reply,) = await self._transport.send(self._node, [words], self._transport.policy.command_timeout)
            if reply != 0:
                return  # It is done, or there is no asking.
            # The server has not seen the call yet, or its reply is on the way.
            await asyncio.sleep(UNBLOCK_AGAIN)

    async def _forget(self) -> None:
        link, self._client_id = self.link, None
        if link is not None:
            await link.close()
            if self.link is link:
                self.link = None

    async def close(self) -> None:
        self._closed = True
        self._transport.forget_reader(self)
        if self._dialing is not None:
            await _undo(self._dialing)
        await self._forget()


async def _undo(dialing: asyncio.Task[Link]) -> None:
    """Ends an attempt to connect that nobody wants any more, and what came of it."""
    await call_off(dialing)
    if succeeded(dialing):
        await dialing.result().close()
