"""A minimal web server for metrics and health checks.

Guarantee: GET and HEAD only. A request that is too long, too slow or malformed gets an error or is dropped, and never
reaches a route. An error in a route is a 500 without details. Standard library only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

logger = logging.getLogger("toril.http")

MAX_REQUEST_BYTES: Final = 16 * 1024  # of a request, headers included
REQUEST_SECONDS: Final = 10.0  # until a request must have arrived
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a route."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Route = Callable[[], Awaitable[Response]]


class HttpServer:
    """Serves GET requests on some paths, in the event loop in which it was started."""

    def __init__(self, routes: Mapping[str, Route], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._routes = dict(routes)
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None

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
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            method, response = await self._respond(head)
            writer.write(_encode(response, with_body=method != "HEAD"))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # The client has disconnected, or does not speak HTTP.
        finally:
            writer.close()

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
            logger.exception("the response to %s failed", target)
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
