"""A minimal web server for metrics and health checks.

Guarantee: GET and HEAD only. A request that is too long, too slow or malformed gets an error or is dropped, and never
reaches a route. A client that does not read its response is disconnected. At most `MAX_CONNECTIONS` clients are served
at the same time; others are disconnected. An error in a route is a 500 without details. Standard library only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

from toril.protocol.printable import one_line

logger = logging.getLogger("toril.http")

MAX_REQUEST_BYTES: Final = 16 * 1024  # of a request, headers included
MAX_CONNECTIONS: Final = 100  # at the same time: probes and scrapes are few and short
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a route."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What one client may take of the server."""

    connections: int = MAX_CONNECTIONS  # at the same time, of all clients
    request_seconds: float = 10.0  # until a request must have arrived
    response_seconds: float = 10.0  # until a response must have been read


Route = Callable[[], Awaitable[Response]]


class HttpServer:
    """Serves GET requests on some paths, in the event loop in which it was started."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: HttpLimits | None = None,
    ) -> None:
        self._routes = dict(routes)
        self._host = host
        self._port = port
        self._limits = limits or HttpLimits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """The address of the server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def port(self) -> int:
        if self._server is None:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve_connection, self._host, self._port, limit=MAX_REQUEST_BYTES
            )

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for writer in self._connections:
                writer.transport.abort()
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._limits.connections:
            writer.transport.abort()
            return
        self._connections.add(writer)
        try:
            await self._exchange(reader, writer)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.transport.abort()  # The client has disconnected, is too slow, or does not speak HTTP.
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._limits.request_seconds):
            head = await reader.readuntil(b"\r\n\r\n")
        method, response = await self._respond(head)
        writer.transport.set_write_buffer_limits(0)  # so that `drain` waits until the client has all
        async with asyncio.timeout(self._limits.response_seconds):
            writer.write(_encode(response, with_body=method != "HEAD"))
            await writer.drain()

    async def _respond(self, head: bytes) -> tuple[str, Response]:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/"):
            return "GET", _status_answer(HTTPStatus.BAD_REQUEST)
        method, target = parts[0], parts[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return method, _status_answer(HTTPStatus.METHOD_NOT_ALLOWED)
        route = self._routes.get(target)
        if route is None:
            return method, _status_answer(HTTPStatus.NOT_FOUND)
        try:
            return method, await route()
        except Exception:
            logger.exception("the response to %s failed", one_line(target))
            return method, _status_answer(HTTPStatus.INTERNAL_SERVER_ERROR)


def _status_answer(status: HTTPStatus) -> Response:
    return Response(f"{status.value} {status.phrase}\n".encode(), status)


def _encode(response: Response, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (response.body if with_body else b"")
