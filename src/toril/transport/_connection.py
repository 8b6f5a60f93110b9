"""One asyncio connection that many callers share: commands go out in order, replies come back in order.

Guarantee: giving up on a call never breaks the order of the others, because nobody but the link itself reads; a reply
that nobody waits for any more is still read and dropped.

redis-py opens the connection and logs in. Then the link takes over its transport: hiredis reads replies as they arrive,
without a task or a stream in between and through one lasting buffer, which is what makes many small calls cheap.
"""

from __future__ import annotations

import asyncio
import mmap
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis

from toril.commands.command import Arg
from toril.transport._pending import Pending, PendingCall, PendingReplies
from toril.transport._redis_py import TROUBLE, not_sent
from toril.transport._retry_protocol import Lost, NotSent

# What one read takes at most: as much as asyncio would ask for.
ROOM_FOR_REPLIES = 256 * 1024


class Link(asyncio.BufferedProtocol):
    """A live connection. `closed` once it is of no more use; it never comes back to life."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        # Memory that is not there before it is used: most replies are small. A view of it, because asyncio's TLS fills
        # what it gets piece by piece, and pieces of anything else would be copies.
        self._arrived = memoryview(mmap.mmap(-1, ROOM_FOR_REPLIES))
        self._waiting: deque[Pending] = deque()  # written, in the order of their replies
        self._unwritten: deque[tuple[Sequence[tuple[Arg, ...]], Pending, float]] = deque()
        self._paused = False  # the buffer of unsent bytes is full
        self._guard: asyncio.TimerHandle | None = None
        self.closed = False
        self._drained: asyncio.Future[None] | None = None  # of a link that retires
        self._gone = self._loop.create_future()
        # redis-py keeps reader and writer to itself; the transport is the one thing we need of them.
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
        self._transport.set_protocol(self)

    @classmethod
    async def open(cls, connection: Any) -> Link:
        """Connects and logs in; raises `NotSent` when that fails."""
        try:
            await connection.connect()
        except TROUBLE as error:
            _discard(connection)
            raise not_sent(error, connection.db) from error
        except BaseException:
            _discard(connection)
            raise
        # What redis-py's streams were told before we take over, we shall not be told again.
        if connection._reader.at_eof() or connection._writer.transport.is_closing():  # noqa: SLF001
            _discard(connection)
            raise NotSent("the server hung up right after the login")
        return cls(connection)

    # --- calls ----------------------------------------------------------------------------------------------

    async def exchange(
        self, words: Sequence[tuple[Arg, ...]], timeout: float, *, firm: bool = False
    ) -> list[Any]:
        """Sends commands as one write; replies in order, with `NotSent` or `Lost` where there is none.

        A `firm` call that was sent waits for its replies even if its task is cancelled: they may bring jobs.
        """
        if self.closed or self._failed():
            return [NotSent("the connection is closed")] * len(words)
        pending = PendingReplies(self._loop.create_future(), len(words))
        self._write(words, pending, timeout)
        return await pending.wait(firm=firm)

    def submit(self, words: tuple[Arg, ...], call: PendingCall[Any], timeout: float) -> bool:
        """Sends one command, at once or when the buffer has space; `call` takes its reply, its `NotSent` or its `Lost`.

        Returns False, and does nothing, when the link is closed.
        """
        if self.closed or self._failed():
            return False
        self._write((words,), call, timeout)
        return True

    def _write(self, words: Sequence[tuple[Arg, ...]], pending: Pending, timeout: float) -> None:
        # Packed first: words that cannot be sent must not leave a place in the queue of those that wait for replies.
        message = packed(words[0]) if len(words) == 1 else b"".join([packed(one) for one in words])
        if self._paused or self._unwritten:
            self._unwritten.append(
                (words, pending, timeout)
            )  # not the message: it would be a copy of the words
        else:
            self._write_now(message, pending, timeout)

    def _write_now(self, message: bytes, pending: Pending, timeout: float) -> None:
        pending.written = True
        pending.deadline = deadline = self._loop.time() + timeout
        self._waiting.append(pending)
        self._transport.write(message)
        self._watch(deadline)

    def _write_unwritten(self) -> None:
        """Writes what was held up, in order, until the buffer is full again."""
        while self._unwritten and not (self._paused or self.closed or self._failed()):
            words, pending, timeout = self._unwritten.popleft()
            if not pending.cancelled:
                self._write_now(b"".join([packed(one) for one in words]), pending, timeout)

    def _fail_unwritten(self) -> None:
        while self._unwritten:
            self._unwritten.popleft()[1].fail(NotSent("the connection is closed"))

    def _failed(self) -> bool:
        """Whether a write has failed. asyncio tells us a turn later, and complains of what is written until then."""
        self.closed = self._transport.is_closing()
        return self.closed

    def _watch(self, deadline: float) -> None:
        """One timer stands for all that wait: for the nearest of their deadlines."""
        if self._guard is not None:
            if self._guard.when() <= deadline:
                return
            self._guard.cancel()
        self._guard = self._loop.call_at(deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        """Replies come in order, so one that is late holds up all behind it: the connection is given up."""
        self._guard = None
        if not self._waiting:
            return
        nearest = min(pending.deadline for pending in self._waiting)
        if nearest <= self._loop.time():
            self._hang_up("no reply within the time-out")
        else:
            self._watch(nearest)

    # --- what asyncio tells us ------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # we always have the same room
        return self._arrived

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        try:
            reader.feed(self._arrived, 0, nbytes)  # type: ignore[arg-type]  # hiredis takes any buffer
            while (reply := reader.gets()) is not _NOTHING:
                if not self._waiting:
                    self._hang_up("the server sent a reply that nobody asked for")
                else:
                    # Off the queue before it answers: an answer may send the next command.
                    head = self._waiting[0]
                    if head.missing == 1:
                        self._waiting.popleft()
                    head.take(reply)
            self._tell_drained()
        except hiredis.ProtocolError as error:
            self._hang_up(f"the server sent something that is not RESP: {error}")

    def _hang_up(self, reason: str) -> None:
        self._break(Lost(reason))
        self._transport.abort()

    def eof_received(self) -> bool:
        # At once, not when the transport has closed: what is sent in between would count as lost.
        self._break(Lost("the server closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(Lost(_reason(exc) if exc else "the server closed the connection"))
        if not self._gone.done():
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._loop.call_soon(self._write_unwritten)

    def _break(self, error: Exception) -> None:
        self.closed = True
        if self._guard is not None:
            self._guard.cancel()
            self._guard = None
        while self._waiting:
            self._waiting.popleft().fail(error)
        self._fail_unwritten()
        self._tell_drained()

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._waiting and not self._drained.done():
            self._drained.set_result(None)

    async def retire(self) -> None:
        """Takes no more calls, and closes when those under way have their replies: they are others' calls."""
        self.closed = True
        self._fail_unwritten()
        if self._waiting:
            self._drained = self._drained or self._loop.create_future()
            await self._drained
        await self.close()

    @property
    def busy(self) -> bool:
        """Whether replies are still to come."""
        return bool(self._waiting)

    def abort(self) -> None:
        """Closes at once; what is still waiting is broken off. The socket is gone with the next turn of the loop."""
        self._break(Lost("the connection was closed"))
        _discard(self._connection)

    async def close(self) -> None:
        """Closes at once, and returns when the socket is gone."""
        self.abort()
        await asyncio.wait({self._gone})


_NOTHING = object()


# hiredis takes words of any number; its type hint says one.
packed: Callable[[tuple[Arg, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]


def _reason(error: BaseException | None) -> str:
    return str(error) or type(error).__name__


def _discard(connection: Any) -> None:
    """At once and without a wait: redis-py's own `disconnect` could be cancelled half-way."""
    writer = connection._writer  # noqa: SLF001
    if writer is not None:
        writer.transport.abort()
    connection._close()  # noqa: SLF001
