"""One asyncio connection that many callers share: requests are written in order, replies are read in order.

Guarantee: a cancelled call does not change the order of the others: its reply is read and dropped.

hiredis parses replies as they arrive, without a task or a stream in between and in one buffer, which makes small calls
cheap. The first exchange is the login (`_login`).
"""

from __future__ import annotations

import asyncio
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

import hiredis

from toril.transport._login import check_login, login_requests, open_socket
from toril.transport._pending import Pending, PendingCall, PendingReplies
from toril.transport._retry_protocol import Lost, NotSent, Reply, Request
from toril.transport.address import Address, Node
from toril.transport.policy import ConnectionPolicy

# The most that one read takes: as much as asyncio would ask for.
READ_BUFFER_BYTES: Final = 256 * 1024

# hiredis takes any number of arguments; its type hint allows one.
packed: Callable[[Request], bytes] = hiredis.pack_command  # type: ignore[assignment]

_INCOMPLETE: Final = object()  # what hiredis returns until a reply is complete


class Connection(asyncio.BufferedProtocol):
    """An open connection. Once it is `closed`, it stays closed."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._parser = hiredis.Reader(notEnoughData=_INCOMPLETE)
        # An anonymous mapping takes no memory before it is used: most replies are small. A view of it, because
        # asyncio's TLS fills it piece by piece, and a slice of anything else would be a copy.
        self._buffer = memoryview(mmap.mmap(-1, READ_BUFFER_BYTES))
        self._waiting: deque[Pending] = deque()  # written, in the order of their replies
        self._unwritten: deque[tuple[Sequence[Request], Pending, float]] = deque()
        self._paused = False  # asyncio's write buffer is full
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None  # set when a retired connection has all its replies
        self._lost = self._loop.create_future()
        self.closed = False

    @classmethod
    async def open(
        cls, address: Address, node: Node | None, policy: ConnectionPolicy, name: str | None
    ) -> Connection:
        """Connects and logs in; raises `NotSent` when that fails."""
        _, connection = await open_socket(address, node, cls, policy.connect_timeout)
        try:
            requests = await login_requests(address, name)
            replies = await connection.exchange(requests, policy.command_timeout)
            check_login(requests, replies, address.login.get("db"))
        except BaseException:
            connection.abort()
            raise
        return connection

    # --- calls ----------------------------------------------------------------------------------------------

    async def exchange(
        self, requests: Sequence[Request], timeout: float, *, firm: bool = False
    ) -> list[Reply]:
        """Sends requests in one write; returns their replies, with `NotSent` or `Lost` where there is none.

        A `firm` call that was written waits for its replies even if its task is cancelled: they may contain jobs.
        """
        if self.closed or self._is_closing():
            return [NotSent("the connection is closed")] * len(requests)
        pending = PendingReplies(self._loop.create_future(), len(requests))
        self._write(requests, pending, timeout)
        return await pending.wait(firm=firm)

    def submit(self, request: Request, call: PendingCall, timeout: float) -> bool:
        """Writes one request, now or when the buffer has space; `call` takes its reply, its `NotSent` or its `Lost`.

        Returns False, and does nothing, when the connection is closed.
        """
        if self.closed or self._is_closing():
            return False
        self._write((request,), call, timeout)
        return True

    def _write(self, requests: Sequence[Request], pending: Pending, timeout: float) -> None:
        # Packed first: a request that cannot be packed must not enter the queue of those that wait for replies.
        message = packed(requests[0]) if len(requests) == 1 else b"".join([packed(one) for one in requests])
        if self._paused or self._unwritten:
            self._unwritten.append(
                (requests, pending, timeout)
            )  # not the message, which is a copy of all data
        else:
            self._write_now(message, pending, timeout)

    def _write_now(self, message: bytes, pending: Pending, timeout: float) -> None:
        pending.written = True
        pending.deadline = deadline = self._loop.time() + timeout
        self._waiting.append(pending)
        self._transport.write(message)
        self._set_timer(deadline)

    def _write_unwritten(self) -> None:
        """Writes requests that wait for space, in order, until the buffer is full again."""
        while self._unwritten and not (self._paused or self.closed or self._is_closing()):
            requests, pending, timeout = self._unwritten.popleft()
            if not pending.cancelled:
                self._write_now(b"".join([packed(one) for one in requests]), pending, timeout)

    def _fail_unwritten(self) -> None:
        while self._unwritten:
            self._unwritten.popleft()[1].fail(NotSent("the connection is closed"))

    def _is_closing(self) -> bool:
        """Whether a write has failed: asyncio calls `connection_lost` only in the next turn of the loop."""
        self.closed = self._transport.is_closing()
        return self.closed

    def _set_timer(self, deadline: float) -> None:
        """One timer serves all that wait: it is set to the nearest of their deadlines."""
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Closes the connection if a reply is late: replies come in order, so it holds up all others."""
        self._timer = None
        if not self._waiting:
            return
        nearest = min(pending.deadline for pending in self._waiting)
        if nearest <= self._loop.time():
            self._close_with_error("no reply within the time-out")
        else:
            self._set_timer(nearest)

    # --- called by asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # the buffer is always the same
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        parser = self._parser
        try:
            parser.feed(self._buffer, 0, nbytes)  # type: ignore[arg-type]  # hiredis takes any buffer
            while (reply := parser.gets()) is not _INCOMPLETE:
                if not self._waiting:
                    self._close_with_error("the server sent a reply to no request")
                else:
                    # Removed before it takes the reply: `on_reply` may submit the next command.
                    head = self._waiting[0]
                    if head.missing == 1:
                        self._waiting.popleft()
                    head.take(reply)
            self._set_drained()
        except hiredis.ProtocolError as error:
            self._close_with_error(f"the server sent something that is not RESP: {error}")

    def eof_received(self) -> bool:
        # Now, not in `connection_lost`: what is sent in between would count as lost.
        self._fail_all(Lost("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = "the server closed the connection" if exc is None else str(exc) or type(exc).__name__
        self._fail_all(Lost(reason))
        if not self._lost.done():
            self._lost.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._loop.call_soon(self._write_unwritten)

    # --- closing --------------------------------------------------------------------------------------------

    def _close_with_error(self, reason: str) -> None:
        self._fail_all(Lost(reason))
        self._transport.abort()

    def _fail_all(self, error: Lost) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._waiting.popleft().fail(error)
        self._fail_unwritten()
        self._set_drained()

    def _set_drained(self) -> None:
        if self._drained is not None and not self._waiting and not self._drained.done():
            self._drained.set_result(None)

    @property
    def is_busy(self) -> bool:
        """Whether replies are still to come."""
        return bool(self._waiting)

    async def retire(self) -> None:
        """Takes no more calls, and closes when those in flight have their replies."""
        self.closed = True
        self._fail_unwritten()
        if self._waiting:
            self._drained = self._drained or self._loop.create_future()
            await self._drained
        await self.close()

    def abort(self) -> None:
        """Closes at once; replies that are missing are lost. The socket is closed in the next turn of the loop."""
        self._fail_all(Lost("the connection was closed"))
        self._transport.abort()

    async def close(self) -> None:
        """Closes at once, and returns when the socket is closed."""
        self.abort()
        await asyncio.wait({self._lost})
