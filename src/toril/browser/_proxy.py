"""The proxy on loopback through which the browser makes all connections, and which checks their addresses.

Guarantee: a connection is made to the address that was checked. So neither redirects, nor frames, scripts and images,
nor a name that resolves to another address the second time, reach an address that is not allowed. Each connection
carries one request to one host, so that no request goes over the connection of another host. Received bytes are
counted for all parts of the page (frames, workers, sockets), and limited. Only the browser knows the
proxy's password: other programs of the machine cannot use it. A proxy that belongs to no page makes no connection.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from toril.browser._addresses import may_visit
from toril.browser.options import BrowserOptions
from toril.errors import AddressRefused

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Count = Callable[[int], Awaitable[None]]

USER = "toril"  # of the proxy
REFUSED_HEADER = "x-toril-refused"  # distinguishes a refusal of the proxy from a 403 of the server
_HEAD_LIMIT = 64 * 1024
_CHUNK = 64 * 1024
_CONNECT_SECONDS = 10.0
_HOP_BY_HOP = ("connection", "proxy-connection", "keep-alive", "proxy-authorization", "upgrade")


async def system_resolve(host: str, port: int) -> list[str]:
    """Returns all addresses of a host from the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    host: str
    port: int
    path: str
    lines: list[bytes]  # headers without the hop-by-hop ones
    login: bytes  # the value of Proxy-Authorization


class AddressProxy:
    """A forward proxy for one page; `limit` is the number of bytes that may be received (None: no limit)."""

    def __init__(
        self,
        options: BrowserOptions,
        resolve: Resolve = system_resolve,
        limit: int | None = None,
        *,
        serves_page: bool = True,
    ) -> None:
        """`serves_page=False`: it checks addresses, and refuses every connection."""
        self._options = options
        self._resolve = resolve
        self._limit = limit
        self._serves_page = serves_page
        self.password = secrets.token_urlsafe(24)
        self._login = b"Basic " + base64.b64encode(f"{USER}:{self.password}".encode())
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._refused: set[str] = set()
        self._loaded = 0
        self._holds = 0
        self._may_forward = asyncio.Event()
        self._may_forward.set()
        self.on_excess: Callable[[], object] | None = None  # called once, when the limit is reached

    @property
    def url(self) -> str:
        """The address of the proxy."""
        if self._server is None:
            raise RuntimeError("the proxy is not open")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def has_refused(self, host: str) -> bool:
        """Returns whether a connection to this host was refused."""
        return host in self._refused

    def hold(self) -> None:
        """Forwards nothing to the browser until `release` was called as often."""
        self._holds += 1
        self._may_forward.clear()

    def release(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._may_forward.set()

    async def open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_LIMIT)

    async def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        if server is not None:
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self, host: str, port: int) -> str:
        """Returns an allowed address of the host; raises AddressRefused if it has none."""
        addresses = await self._addresses(host, port)
        for address in addresses:
            if may_visit(host, address, self._options):
                return address
        self._refused.add(host)
        raise AddressRefused(host, addresses[0] if addresses else None)

    async def _checked_address(self, host: str, port: int) -> str:
        if not self._serves_page:
            raise AddressRefused(host, "no page is open")
        return await self.check(host, port)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        try:
            return await self._resolve(host, port)
        except ValueError as error:  # empty or too long labels cannot be encoded, null characters are refused
            raise OSError(f"{host!r} is not a host name") from error

    # --- one connection -------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
        # A connection is cancelled when its page is closed.
        ignored = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError)
        with contextlib.suppress(*ignored):
            try:
                await self._handle_request(reader, writer)
            finally:
                writer.close()

    async def _handle_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = _parse(await reader.readuntil(b"\r\n\r\n"))
        if head is None:
            await _send_response(
                writer, "400 Bad Request", "this proxy takes CONNECT and absolute http:// URLs"
            )
            return
        if not hmac.compare_digest(head.login, self._login):
            await _send_response(writer, "407 Proxy Authentication Required", "this proxy needs a password")
            return
        try:
            address = await self._checked_address(head.host, head.port)
            async with asyncio.timeout(_CONNECT_SECONDS):
                from_host, to_host = await asyncio.open_connection(address, head.port, limit=_HEAD_LIMIT)
        except AddressRefused as error:
            await _send_response(writer, "403 Forbidden", str(error), refused=True)
            return
        except (OSError, TimeoutError) as error:
            await _send_response(writer, "502 Bad Gateway", type(error).__name__)
            return
        try:
            if head.method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _exchange(_copy(reader, to_host), _copy(from_host, writer, self._count))
            else:
                to_host.write(_request(head))
                await _exchange(_copy(reader, to_host), _respond(from_host, writer, self._count))
        finally:
            to_host.close()

    async def _count(self, size: int) -> None:
        """Counts received bytes, and waits while they are held; raises if there are more than the page may load."""
        await self._may_forward.wait()
        before, self._loaded = self._loaded, self._loaded + size
        if self._limit is None or self._loaded <= self._limit:
            return
        if before <= self._limit and self.on_excess is not None:
            self.on_excess()
        raise ConnectionAbortedError("the page has loaded more than its limit")


def _parse(raw: bytes) -> _Head | None:
    first, *lines = raw[:-4].split(b"\r\n")
    parts_of_line = first.decode("latin-1").split(" ")
    if len(parts_of_line) != 3:
        return None
    method, target, _ = parts_of_line
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or (method != "CONNECT" and parts.scheme != "http"):
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    port = port or (443 if method == "CONNECT" else 80)
    return _Head(method, host, port, path, _end_to_end_headers(lines), _login_of(lines))


def _login_of(lines: Sequence[bytes]) -> bytes:
    named = (line.partition(b":") for line in lines)
    return next(
        (value.strip() for name, _, value in named if name.strip().lower() == b"proxy-authorization"), b""
    )


def _end_to_end_headers(lines: Sequence[bytes]) -> list[bytes]:
    return [
        line for line in lines if line.partition(b":")[0].strip().lower().decode("latin-1") not in _HOP_BY_HOP
    ]


def _request(head: _Head) -> bytes:
    first = f"{head.method} {head.path} HTTP/1.1".encode("latin-1")
    return b"\r\n".join([first, *head.lines, b"Connection: close", b"", b""])


async def _respond(from_host: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Count) -> None:
    """Sends the server's response; the connection is closed after it."""
    first, *lines = (await from_host.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    writer.write(b"\r\n".join([first, *_end_to_end_headers(lines), b"Connection: close", b"", b""]))
    await _copy(from_host, writer, count)


async def _copy(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, count: Count | None = None
) -> None:
    while chunk := await source.read(_CHUNK):
        if count is not None:
            await count(len(chunk))
        target.write(chunk)
        await target.drain()
    with contextlib.suppress(OSError):
        if target.can_write_eof():
            target.write_eof()


async def _exchange(sending: Awaitable[None], receiving: Awaitable[None]) -> None:
    """Copies both ways until the response is complete; then the rest of the request is dropped."""
    upload = asyncio.ensure_future(sending)
    try:
        await receiving
    finally:
        upload.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await upload


async def _send_response(
    writer: asyncio.StreamWriter, status: str, text: str, *, refused: bool = False
) -> None:
    body = text.encode()
    refused_line = f"{REFUSED_HEADER}: 1\r\n" if refused else ""
    if status.startswith("407"):
        refused_line = 'Proxy-Authenticate: Basic realm="toril"\r\n'
    size = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    head = f"HTTP/1.1 {status}\r\n{refused_line}{size}Connection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
