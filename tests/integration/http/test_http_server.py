"""The small web server of probes and metrics, and clients that take more than their part."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.servers import free_port
from toril.http import HttpLimits, HttpServer, Response


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET /ok HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK"),
        (b"GET /ok?a=b HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"HEAD /ok HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"POST /ok HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500 Internal Server Error"),
    ],
)
async def test_requests_are_answered_by_their_kind(request_text: bytes, status: bytes) -> None:
    async with HttpServer({"/ok": said_ok, "/broken": broken}) as http_server:
        answer = await asked(http_server.port, request_text)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.endswith(b"\r\n\r\n") if request_text.startswith(b"HEAD") else answer.endswith(b"\n")
    assert b"secret" not in answer


async def said_ok() -> Response:
    return Response(b"ok\n")


async def broken() -> Response:
    raise ValueError("secret")


async def test_a_request_that_never_ends_is_dropped() -> None:
    async with HttpServer({"/ok": said_ok}) as http_server:
        assert await asked(http_server.port, b"GET /" + b"a" * 100_000) == b""


async def asked(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_port_that_is_taken_is_an_error_of_the_system() -> None:
    port = free_port()
    async with HttpServer({"/ok": said_ok}, port=port):
        with pytest.raises(OSError, match="address already in use"):
            await HttpServer({"/ok": said_ok}, port=port).start()


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    served = asyncio.Event()

    async def much() -> Response:
        served.set()
        return Response(b"x" * 50_000_000)

    limits = HttpLimits(response_seconds=0.2)
    async with HttpServer({"/much": much}, limits=limits) as http_server:
        reader, writer = await asyncio.open_connection("127.0.0.1", http_server.port, limit=1024)
        writer.write(b"GET /much HTTP/1.1\r\n\r\n")
        await asyncio.wait_for(served.wait(), 10)
        await until_free(http_server)  # it gives up before the client has read anything
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(50_000_000), 10)
        writer.close()


async def test_a_client_that_sends_nothing_is_disconnected() -> None:
    async with HttpServer({"/ok": said_ok}, limits=HttpLimits(request_seconds=0.1)) as http_server:
        assert await asyncio.wait_for(asked(http_server.port, b"GET /ok HTTP/1.1\r\n"), 10) == b""


async def test_more_connections_than_allowed_are_refused_and_the_next_one_is_served() -> None:
    async with HttpServer({"/ok": said_ok}, limits=HttpLimits(connections=3)) as http_server:
        idle = [socket.create_connection(("127.0.0.1", http_server.port)) for _ in range(3)]
        while len(http_server._connections) < 3:
            await asyncio.sleep(0)
        assert await asked(http_server.port, b"GET /ok HTTP/1.1\r\n\r\n") == b""
        for one in idle:
            one.close()
        await until_free(http_server)
        assert b"200 OK" in await asked(http_server.port, b"GET /ok HTTP/1.1\r\n\r\n")


async def test_stopping_ends_open_connections() -> None:
    http_server = HttpServer({"/ok": said_ok})
    await http_server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", http_server.port)
    while not http_server._connections:
        await asyncio.sleep(0)
    await asyncio.wait_for(http_server.stop(), 5)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    writer.close()


async def until_free(http_server: HttpServer) -> None:
    """Until the server serves no client."""
    while http_server._connections:
        await asyncio.sleep(0)
