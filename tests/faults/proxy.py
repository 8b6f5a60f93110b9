"""A TCP proxy in front of a server that does to chosen calls what networks do to some.

    with Proxy(server.port) as proxy:
        proxy.arm("cut after", match=b"emails:wait")      # the next call that names this key
        ...                                               # a store on proxy.url makes that call
        assert proxy.forwarded(b"emails:wait") == 1       # how often the server has seen it

    cut before    the call is read and the connection closed: the server never sees it
    cut after     the call is passed on, its reply read, and the connection closed: it ran, and nobody was told
    cut within    half of the reply is passed on, then the connection is closed
    delay         the reply is passed on after `seconds`
    swallow       neither the reply nor any later one is passed on, and the connection stays open
    answer        the call is answered with `reply` and not passed on

Guarantee: a fault strikes exactly once for each time it was armed. The proxy lives in a thread of its own, so a test
may block; it ends with its `with` block.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

Kind = Literal["cut before", "cut after", "cut within", "delay", "swallow", "answer"]

FAULTS: tuple[Kind, ...] = ("cut before", "cut after", "cut within", "swallow")
CHUNK = 1 << 20


@dataclass(eq=False, slots=True)
class Fault:
    """One armed fault; `struck` is set when it has done its work."""

    kind: Kind
    match: bytes
    seconds: float = 0.0
    reply: bytes = b""
    after: int = 0  # calls that it lets pass first
    struck: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Listens on a port of its own and passes everything on to `127.0.0.1:target`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._armed: list[Fault] = []
        self._seen: list[bytes] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._lock = threading.Lock()
        self._open_door: asyncio.Event = asyncio.Event()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="proxy")
        self._over: asyncio.Event = asyncio.Event()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    # --- what a test says -----------------------------------------------------------------------------------

    def arm(
        self, kind: Kind, match: bytes, *, seconds: float = 0.0, reply: bytes = b"", after: int = 0
    ) -> Fault:
        """The next call that holds `match` meets the fault, or the one that follows so many of them."""
        fault = Fault(kind, match, seconds, reply, after)
        with self._lock:
            self._armed.append(fault)
        return fault

    def forwarded(self, match: bytes) -> int:
        """How many calls that hold `match` the server has seen."""
        with self._lock:
            return sum(match in call for call in self._seen)

    def occurrences(self, word: bytes) -> int:
        """How often the server has seen a word, however its calls were cut into packets."""
        with self._lock:
            return b"".join(self._seen).count(word)

    def shut_the_door(self) -> None:
        """New connections wait until `open_the_door`."""
        self._on_loop(self._set_door(False))

    def open_the_door(self) -> None:
        self._on_loop(self._set_door(True))

    async def _set_door(self, is_open: bool) -> None:
        if is_open:
            self._open_door.set()
        else:
            self._open_door.clear()

    # --- life -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()

    def _on_loop(self, act: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(act, self._loop).result()

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._open_door.set()
        server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        callers = asyncio.all_tasks() - {asyncio.current_task()}
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)  # Transports close on the next turns of the loop.

    # --- one connection -------------------------------------------------------------------------------------

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open_door.wait()
        with contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers += (writer, server_writer)
            call = _Call(self, writer, server_writer)
            passing = asyncio.create_task(call.pass_replies(server_reader))
            try:
                await call.pass_calls(reader)
            finally:
                passing.cancel()
                _close(server_writer)
        _close(writer)

    def seen(self, call: bytes) -> None:
        with self._lock:
            self._seen.append(call)

    def fault_for(self, call: bytes) -> Fault | None:
        """Takes the first armed fault that the call meets."""
        with self._lock:
            for fault in self._armed:
                if fault.match not in call:
                    continue
                if fault.after:
                    fault.after -= 1
                else:
                    self._armed.remove(fault)
                    return fault
        return None


class _Call:
    """A connection of one client: its calls and the replies to them."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._fault: Fault | None = None  # for the next reply
        self._silent = False  # a stream has no gaps: after one reply that is swallowed come no others

    async def pass_calls(self, reader: asyncio.StreamReader) -> None:
        while call := await reader.read(CHUNK):
            fault = self._proxy.fault_for(call)
            if fault is not None and fault.kind == "cut before":
                fault.struck.set()
                return
            if fault is not None and fault.kind == "answer":
                self._client.write(fault.reply)
                fault.struck.set()
                continue
            self._fault = fault or self._fault
            self._proxy.seen(call)
            self._server.write(call)
            await self._server.drain()

    async def pass_replies(self, reader: asyncio.StreamReader) -> None:
        while reply := await reader.read(CHUNK):
            fault, self._fault = self._fault, None
            if self._silent:
                continue
            if fault is None:
                self._client.write(reply)
            elif await self._strike(fault, reply):
                break
        _close(self._client)

    async def _strike(self, fault: Fault, reply: bytes) -> bool:
        """Does what the fault does to a reply; True when the connection ends with it."""
        match fault.kind:
            case "cut within":
                self._client.write(reply[: max(1, len(reply) // 2)])
                await self._client.drain()
            case "delay":
                await asyncio.sleep(fault.seconds)
                fault.struck.set()  # before the reply, which ends the wait of whoever asks for it
                self._client.write(reply)
            case "swallow":
                self._silent = True
        fault.struck.set()
        return fault.kind in ("cut after", "cut within")


def _close(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.close()
