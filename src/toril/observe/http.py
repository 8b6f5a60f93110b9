"""A web server for machines that ask questions: metrics and health.

Guarantee: GET and HEAD only; a request that is too long, too slow or too strange is answered or dropped and never
reaches a route; an error in a route is a 500 without details. It needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Self

logger = logging.getLogger("toril.http")

MOST_BYTES: Final = 16 * 1024  # of a request: head and all
PATIENCE: Final = 10.0  # seconds for a request to arrive
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route says."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = TEXT


Route = Callable[[], Awaitable[Answer]]


class Exposition:
    """Answers GET requests on some paths, in the event loop in which it was started."""

    def __init__(self, routes: Mapping[str, Route], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._routes = dict(routes)
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
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
                self._converse, self._host, self._port, limit=MOST_BYTES
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

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
            method, answer = await self._answer(head)
            writer.write(_written(answer, with_body=method != "HEAD"))
            await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # Whoever it was has left, or does not speak HTTP.
        finally:
            writer.close()

    async def _answer(self, head: bytes) -> tuple[str, Answer]:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return "GET", _plainly(HTTPStatus.BAD_REQUEST)
        method, target = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return method, _plainly(HTTPStatus.METHOD_NOT_ALLOWED)
        route = self._routes.get(target)
        if route is None:
            return method, _plainly(HTTPStatus.NOT_FOUND)
        try:
            return method, await route()
        except Exception:
            logger.exception("the answer to %s failed", target)
            return method, _plainly(HTTPStatus.INTERNAL_SERVER_ERROR)


def _plainly(status: HTTPStatus) -> Answer:
    return Answer(f"{status.value} {status.phrase}\n".encode(), status)


def _written(answer: Answer, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (answer.body if with_body else b"")
