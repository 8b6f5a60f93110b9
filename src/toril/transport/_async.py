"""The asyncio driver: runs commands over shared links, and blocking reads over links of their own.

Guarantee: the rules of `_conversation` hold; a call that is cancelled ends at once and disturbs nobody else; after
`close` nothing is left open, also if whoever closes is cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar, cast

from toril.commands.command import Command
from toril.commands.read import server_time
from toril.errors import Closed, TorilError
from toril.transport import _embedded
from toril.transport._connection import Link, packed
from toril.transport._pending import PendingCall, resolve, result_of_firm
from toril.transport._reader import Reader
from toril.transport._redis_py import TROUBLE, MasterNotFoundError, async_connection, async_primary
from toril.transport._retry_protocol import (
    Conversation,
    Drop,
    NotSent,
    Pause,
    Send,
    continued,
    converse,
)
from toril.transport._slots import Node, SlotMap, route_key
from toril.transport.address import Address, parse_address
from toril.transport.clock import SAMPLES, ServerClock
from toril.transport.policy import ConnectionPolicy, checked_policy
from toril.transport.waiting import Closing, call_off, result_of, succeeded, waited

T = TypeVar("T")
R = TypeVar("R")


class AsyncTransport:
    """Runs commands from asyncio. Made anywhere, used within one event loop."""

    def __init__(
        self, redis: Any = None, *, policy: ConnectionPolicy | None = None, name: str | None = None
    ) -> None:
        self.address: Address = parse_address(redis)
        self.policy = checked_policy(policy)
        self.clock = ServerClock()
        self._name = name
        self._lease: asyncio.Task[_embedded.Lease] | None = None
        self.slots = SlotMap(self.address.nodes) if self.address.is_cluster else None
        self._links: dict[Node | None, Link] = {}
        self._dialing: dict[Node | None, asyncio.Task[Link]] = {}
        self._readers: set[Reader] = set()
        self._retiring: set[Link] = set()  # closed for new calls, while others wait for their replies
        self._posts: set[asyncio.Task[Any]] = set()
        self._closing = Closing(self._shut, f"toril-close-{self.address.label}")
        self._ending = asyncio.Event()  # set by `close`: calls that pause before another attempt end
        self._home: asyncio.AbstractEventLoop | None = None  # the loop of the first call

    def __repr__(self) -> str:
        return f"AsyncTransport({self.address.label})"

    @property
    def is_cluster(self) -> bool:
        return self.slots is not None

    # --- running commands -----------------------------------------------------------------------------------

    def submit(self, command: Command[T], on_reply: Callable[[T | TorilError], None]) -> None:
        """Sends a command and returns; `on_reply` is called once, with the value of the command or its error.

        On an open connection the command is written before this returns, and `on_reply` is called in the turn of the
        event loop in which the reply arrives. Otherwise, and after an error, a task follows the retry protocol.
        `on_reply` must not raise.
        """
        self.stay_at_home()
        self._submit(command, on_reply)

    async def run(self, command: Command[T], *, firm: bool = False) -> T:
        """Submits a command and returns its value, or raises its error.

        A `firm` call that was sent waits for its reply even if its task is cancelled, for no longer than the time-out.
        """
        future: asyncio.Future[T | TorilError] = self.stay_at_home().create_future()
        call = self._submit(command, functools.partial(resolve, future), firm=firm)
        try:
            result = await (result_of_firm(call, future) if firm else future)
        except asyncio.CancelledError:
            if not firm:
                call.cancel()
            raise
        if isinstance(result, TorilError):
            raise result
        return result

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """All commands in one pipeline; errors stand in the place of values and are not raised."""
        if not commands:
            return []
        self.stay_at_home()
        return await self._hold(converse(commands, self.policy, self.slots))

    def _submit(
        self, command: Command[T], on_reply: Callable[[T | TorilError], None], *, firm: bool = False
    ) -> PendingCall[T]:
        node = None if self.slots is None else self.slots.known_node_of(route_key(command))
        call = PendingCall(command, on_reply, self._retry, node, firm=firm)
        words = command.evalsha()
        link = self._links.get(node)
        if link is None or not link.submit(words, call, self.policy.command_timeout):
            packed(words)  # words that cannot be sent raise here, in the caller
            self._follow(call, converse((command,), self.policy, self.slots))
        return call

    def _retry(self, call: PendingCall[T], error: Exception) -> None:
        self._follow(call, continued(call.command, error, call.node, self.policy, self.slots))

    def _follow(self, call: PendingCall[T], conversation: Conversation) -> None:
        call.task = self.spawn(self._hold(conversation, firm=call.firm))
        call.task.add_done_callback(call.finish)

    def open_connection(self, key: str) -> object | None:
        """Returns the open connection that `submit` would use for a command with this key; None if there is none.

        Two commands that are submitted while it is the same reach the server in their order.
        """
        link = self._links.get(None if self.slots is None else self.slots.known_node_of(key))
        return None if link is None or link.closed else link

    def spawn(self, step: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Starts a task for which `close` waits."""
        task = asyncio.create_task(step, name="toril-post")
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)
        return task

    async def now_ms(self) -> int:
        """The server's time, asked anew when our idea of it is old."""
        if self.clock.stale:
            await self.refresh_clock()
        return self.clock.now_ms()

    async def refresh_clock(self) -> None:
        samples = []
        for _ in range(SAMPLES):
            sent = time.monotonic()
            seconds = await self.run(server_time())
            samples.append((seconds, sent, time.monotonic()))
        self.clock.learn_best(samples)

    async def connect(self) -> None:
        """Makes sure that the server can be reached, once, within the policy."""
        await self.refresh_clock()

    async def _hold(self, conversation: Conversation, *, firm: bool = False) -> list[Any]:
        """Does what the conversation asks, until it has its results."""
        outcome: Any = None
        try:
            while True:
                effect = conversation.send(outcome)
                match effect:
                    case Send(node, words):
                        outcome = await self.send(node, words, self.policy.command_timeout, firm=firm)
                    case Pause(seconds):
                        outcome = None
                        await waited(seconds, self._ending)
                    case Drop(node):
                        outcome = None
                        self._drop(node)
        except StopIteration as end:
            return cast("list[Any]", end.value)

    def stay_at_home(self) -> asyncio.AbstractEventLoop:
        """Refuses a second event loop: replies would wake the first one, and the caller would wait for ever."""
        here = asyncio.get_running_loop()
        if self._home is None:
            self._home = here
        elif self._home is not here:
            raise TorilError(
                f"what is connected to {self.address.label} belongs to another event loop; make a Queue within each "
                "asyncio.run(), or use toril.sync.Queue, which any thread may call"
            )
        return here

    async def send(
        self, node: Node | None, words: list[Any], timeout: float, *, firm: bool = False
    ) -> list[Any]:
        """Words to a node and its raw replies: below the rules of a conversation, for this room alone."""
        link = self._links.get(node)
        if link is None or link.closed:
            try:
                link = await self._open(node)
            except NotSent as error:
                return [error] * len(words)
        return await link.exchange(words, timeout, firm=firm)

    def _drop(self, node: Node | None) -> None:
        """Other calls may be under way on the same link: they get their own answers before it closes."""
        link = self._links.pop(node, None)
        if link is not None:
            self._retiring.add(link)
            self.spawn(self._wait_cancelled(link))

    async def _wait_cancelled(self, link: Link) -> None:
        try:
            await link.retire()
        finally:
            self._retiring.discard(link)

    # --- connections ----------------------------------------------------------------------------------------

    async def _open(self, node: Node | None) -> Link:
        """One attempt for all who wait for it: a server that hangs costs them one time-out, not one after the other."""
        self._refuse_when_closed()
        dialing = self._dialing.get(node)
        if dialing is None:
            dialing = self._dialing[node] = asyncio.create_task(self._replace(node))
            dialing.add_done_callback(lambda done: self._dialled(node, done))
        await asyncio.wait({dialing})  # many may wait for it: one that is cancelled takes it from nobody
        if dialing.cancelled():
            raise Closed(f"the connection to {self.address.label} was closed")
        return dialing.result()

    async def _replace(self, node: Node | None) -> Link:
        link = self._links.pop(node, None)
        if link is not None:
            await link.close()
        self._links[node] = link = await self.dial(node, self._name)
        return link

    def _dialled(self, node: Node | None, done: asyncio.Task[Link]) -> None:
        self._dialing.pop(node, None)
        succeeded(done)  # Looks at the error, for the case that nobody waits for it any more.

    async def dial(self, node: Node | None, name: str | None) -> Link:
        """A new connection to a node; raises `NotSent` when there is none to be had."""
        self._refuse_when_closed()
        address = await self._resolved()
        if address.kind == "sentinel" and node is None:
            try:
                node = await async_primary(address, self.policy)
            except (MasterNotFoundError, *TROUBLE) as error:
                raise NotSent(f"no sentinel knows the primary of {address.service!r}: {error}") from error
        link = await Link.open(async_connection(address, node, self.policy, name))
        try:
            self._refuse_when_closed()
        except Closed:  # while we were connecting
            link.abort()
            raise
        return link

    def _refuse_when_closed(self) -> None:
        if self._ending.is_set():
            raise Closed(f"the connection to {self.address.label} was closed")

    async def _resolved(self) -> Address:
        """The address to dial. An embedded server is leased once, even if many ask and some of them give up."""
        if self.address.embedded is None:
            return self.address
        if self._lease is None or (self._lease.done() and not succeeded(self._lease)):
            self._lease = asyncio.create_task(asyncio.to_thread(_embedded.lease, self.address.embedded))
            self._lease.add_done_callback(succeeded)  # looks at its error, for the case that nobody else does
        return (await result_of(self._lease)).address

    # --- blocking reads -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def reader(self, *, name: str | None = None) -> AsyncIterator[Reader]:
        """A connection of its own for commands that block."""
        reader = self.open_reader(name=name)
        try:
            yield reader
        finally:
            await reader.close()

    def open_reader(self, *, name: str | None = None) -> Reader:
        """A reader for those who close it themselves; it connects when first used."""
        reader = Reader(self, name)
        self._readers.add(reader)
        return reader

    def forget_reader(self, reader: Reader) -> None:
        self._readers.discard(reader)

    async def run_blocking(self, command: Command[T], timeout: float) -> T:
        """One blocking command on a connection opened for it; in a loop, keep a `reader` instead."""
        async with self.reader() as reader:
            return await reader.run(command, timeout)

    # --- the end --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes all connections and lets the embedded server go. May be called twice."""
        self._ending.set()
        await self._closing.finish()

    async def _shut(self) -> None:
        try:
            await self._close_all()
        except asyncio.CancelledError:  # the loop ends
            for link in (*self._links.values(), *self._retiring, *(one.link for one in self._readers)):
                if link is not None:
                    link.abort()
            raise

    async def _close_all(self) -> None:
        for dialing in list(self._dialing.values()):
            await call_off(dialing)
        for reader in list(self._readers):
            await reader.close()
        for link in (*self._links.values(), *self._retiring):
            await link.close()
        self._links.clear()
        while self._posts:
            await asyncio.wait(self._posts)
        leased, self._lease = self._lease, None
        if leased is not None:
            await asyncio.wait([leased])
            if succeeded(leased):
                await asyncio.to_thread(leased.result().release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        await self.leave(error)

    async def leave(self, error: object) -> None:
        """Closes for whoever leaves, perhaps with an error; one who was cancelled does not wait long for it."""
        self._ending.set()
        await self._closing.after(error)
