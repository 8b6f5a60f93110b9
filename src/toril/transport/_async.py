"""The asyncio transport: runs commands over shared connections, and blocking reads over connections of their own.

Guarantee: commands follow the retry protocol; a call that is cancelled ends at once and disturbs no other; after
`close` nothing is left open, also if the task that closes is cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from toril.commands.command import Command
from toril.commands.server import server_time
from toril.errors import Closed, TorilError
from toril.transport._connection import Connection, packed
from toril.transport._embedded import LeasedServer, lease_server
from toril.transport._pending import OnReply, PendingCall, resolve, result_of_firm_call
from toril.transport._reader import Reader
from toril.transport._retry_protocol import (
    Disconnect,
    NotSent,
    Pause,
    Reply,
    Request,
    RetryProtocol,
    RetrySteps,
    Send,
    StepResult,
)
from toril.transport._slots import Node, SlotMap, route_key
from toril.transport.address import Address, parse_address
from toril.transport.clock import SAMPLES, ServerClock
from toril.transport.policy import ConnectionPolicy, checked_policy
from toril.transport.waiting import Closing, cancel_and_wait, result_of, succeeded, waited

T = TypeVar("T")
R = TypeVar("R")


class AsyncTransport:
    """Runs commands from asyncio. It can be made anywhere and is used within one event loop."""

    def __init__(
        self, redis: object = None, *, policy: ConnectionPolicy | None = None, name: str | None = None
    ) -> None:
        self.address: Address = parse_address(redis)
        self.policy = checked_policy(policy)
        self.clock = ServerClock()
        self._name = name
        self.slots = SlotMap(self.address.nodes) if self.address.is_cluster else None
        self._leasing: asyncio.Task[LeasedServer] | None = None
        self._connections: dict[Node | None, Connection] = {}
        self._connecting: dict[Node | None, asyncio.Task[Connection]] = {}
        self._retired: set[Connection] = set()  # they take no new calls, and wait for replies
        self._readers: set[Reader] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = asyncio.Event()  # set by `close`: calls that pause before another attempt end
        self._closing = Closing(self._close_or_abort, f"toril-close-{self.address.label}")
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop of the first call

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
        self.check_event_loop()
        self._submit(command, on_reply)

    async def run(self, command: Command[T], *, firm: bool = False) -> T:
        """Submits a command and returns its value, or raises its error.

        A `firm` call that was sent waits for its reply even if its task is cancelled, for no longer than the time-out.
        """
        future: asyncio.Future[T | TorilError] = self.check_event_loop().create_future()
        call = self._submit(command, functools.partial(resolve, future), firm=firm)
        try:
            result = await (result_of_firm_call(call, future) if firm else future)
        except asyncio.CancelledError:
            if not firm:
                call.cancel()
            raise
        if isinstance(result, TorilError):
            raise result
        return result

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Runs commands in one pipeline; returns their values, with a `TorilError` for each that failed."""
        if not commands:
            return []
        self.check_event_loop()
        return await self._follow(RetryProtocol(commands, self.policy, self.slots).steps())

    def _submit(self, command: Command[Any], on_reply: OnReply, *, firm: bool = False) -> PendingCall:
        node = None if self.slots is None else self.slots.known_node_of(route_key(command))
        call = PendingCall(command, on_reply, self, node, firm=firm)
        request = command.evalsha()
        connection = self._connections.get(node)
        if connection is None or not connection.submit(request, call, self.policy.command_timeout):
            packed(request)  # a request that cannot be packed raises here, in the caller
            self._start(call, RetryProtocol((command,), self.policy, self.slots).steps())
        return call

    def retry(self, call: PendingCall, error: Exception) -> None:
        """Follows the retry protocol for a submitted call after an error reply or a lost reply."""
        protocol = RetryProtocol((call.command,), self.policy, self.slots)
        self._start(call, protocol.steps([error], call.node))

    def _start(self, call: PendingCall, steps: RetrySteps) -> None:
        call.task = self.spawn(self._follow(steps, firm=call.firm))
        call.task.add_done_callback(call.finish)

    def open_connection(self, key: str) -> object | None:
        """Returns the open connection that `submit` would use for a command with this key; None if there is none.

        Two commands that are submitted while it is the same reach the server in their order.
        """
        connection = self._connections.get(None if self.slots is None else self.slots.known_node_of(key))
        return None if connection is None or connection.closed else connection

    def spawn(self, step: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """Starts a task for which `close` waits."""
        task = asyncio.create_task(step, name="toril-transport")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def now_ms(self) -> int:
        """Returns the server's time, which is read again when the clock is stale."""
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
        """Connects, or raises if the server cannot be reached within the policy."""
        await self.refresh_clock()

    async def _follow(self, steps: RetrySteps, *, firm: bool = False) -> list[object]:
        """Takes the steps of a retry protocol and returns its results."""
        result: StepResult = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                results: list[object] = end.value
                return results
            result = None
            match step:
                case Send(node, requests):
                    result = await self.send(node, requests, self.policy.command_timeout, firm=firm)
                case Pause(seconds):
                    await waited(seconds, self._ending)
                case Disconnect(node):
                    self._retire(node)

    def check_event_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the running event loop; raises if the transport was used in another: its replies arrive there."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise TorilError(
                f"what is connected to {self.address.label} belongs to another event loop; make a Queue within each "
                "asyncio.run(), or use toril.sync.Queue, which any thread may call"
            )
        return loop

    async def send(
        self, node: Node | None, requests: list[Request], timeout: float, *, firm: bool = False
    ) -> list[Reply]:
        """Sends requests to a node and returns its replies, without the retry protocol; for this package only."""
        connection = self._connections.get(node)
        if connection is None or connection.closed:
            try:
                connection = await self._connection_to(node)
            except NotSent as error:
                return [error] * len(requests)
        return await connection.exchange(requests, timeout, firm=firm)

    def _retire(self, node: Node | None) -> None:
        """Other calls may be in flight on the same connection: it closes when they have their replies."""
        connection = self._connections.pop(node, None)
        if connection is not None:
            self._retired.add(connection)
            retiring = self.spawn(connection.retire())
            retiring.add_done_callback(lambda _: self._retired.discard(connection))

    # --- connections ----------------------------------------------------------------------------------------

    async def _connection_to(self, node: Node | None) -> Connection:
        """Connects to a node. All waiters share one attempt: a server that hangs costs them one time-out."""
        self._refuse_when_closed()
        connecting = self._connecting.get(node)
        if connecting is None:
            connecting = self._connecting[node] = asyncio.create_task(self._reconnect(node))
            connecting.add_done_callback(lambda done: self._connected(node, done))
        await asyncio.wait({connecting})  # a waiter that is cancelled does not cancel it
        if connecting.cancelled():
            raise Closed(f"the connection to {self.address.label} was closed")
        return connecting.result()

    async def _reconnect(self, node: Node | None) -> Connection:
        connection = self._connections.pop(node, None)
        if connection is not None:
            await connection.close()
        self._connections[node] = connection = await self.connect_to(node, self._name)
        return connection

    def _connected(self, node: Node | None, done: asyncio.Task[Connection]) -> None:
        self._connecting.pop(node, None)
        succeeded(done)  # marks its error as seen: all waiters may have been cancelled

    async def connect_to(self, node: Node | None, name: str | None) -> Connection:
        """Returns a new connection to a node; raises `NotSent` when the server cannot be reached."""
        self._refuse_when_closed()
        address = await self._server_address()
        if address.kind == "sentinel" and node is None:
            from toril.transport._redis_py import async_primary  # redis-py takes long to import

            node = await async_primary(address, self.policy)
        connection = await Connection.open(address, node, self.policy, name)
        try:
            self._refuse_when_closed()
        except Closed:  # while it connected
            connection.abort()
            raise
        return connection

    def _refuse_when_closed(self) -> None:
        if self._ending.is_set():
            raise Closed(f"the connection to {self.address.label} was closed")

    async def _server_address(self) -> Address:
        """Returns the address to connect to. An embedded server is leased once, also if some waiters are cancelled."""
        if self.address.embedded is None:
            return self.address
        if self._leasing is None or (self._leasing.done() and not succeeded(self._leasing)):
            self._leasing = asyncio.create_task(asyncio.to_thread(lease_server, self.address.embedded))
            self._leasing.add_done_callback(succeeded)  # marks its error as seen
        return (await result_of(self._leasing)).address

    # --- blocking reads -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def reader(self, *, name: str | None = None) -> AsyncIterator[Reader]:
        """Opens a connection of its own for commands that block."""
        reader = self.open_reader(name=name)
        try:
            yield reader
        finally:
            await reader.close()

    def open_reader(self, *, name: str | None = None) -> Reader:
        """Returns a reader that the caller closes; it connects when it is first used."""
        reader = Reader(self, name)
        self._readers.add(reader)
        return reader

    def forget_reader(self, reader: Reader) -> None:
        self._readers.discard(reader)

    async def run_blocking(self, command: Command[T], timeout: float) -> T:
        """Runs one blocking command on a new connection; in a loop, use one `reader` instead."""
        async with self.reader() as reader:
            return await reader.run(command, timeout)

    # --- closing --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes all connections and releases the embedded server. May be called twice."""
        self._ending.set()
        await self._closing.finish()

    async def _close_or_abort(self) -> None:
        try:
            await self._close_all()
        except asyncio.CancelledError:  # the event loop ends
            reading = (reader.connection for reader in self._readers)
            for connection in (*self._connections.values(), *self._retired, *reading):
                if connection is not None:
                    connection.abort()
            raise

    async def _close_all(self) -> None:
        for connecting in list(self._connecting.values()):
            await cancel_and_wait(connecting)
        for reader in list(self._readers):
            await reader.close()
        for connection in (*self._connections.values(), *self._retired):
            await connection.close()
        self._connections.clear()
        while self._tasks:
            await asyncio.wait(self._tasks)
        leasing, self._leasing = self._leasing, None
        if leasing is not None:
            await asyncio.wait([leasing])
            if succeeded(leasing):
                await asyncio.to_thread(leasing.result().release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        await self.leave(error)

    async def leave(self, error: object) -> None:
        """Closes at the end of an `async with` that `error` ended; after a cancellation it does not wait long."""
        self._ending.set()
        await self._closing.after(error)
