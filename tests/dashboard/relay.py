"""A TCP relay before a server that counts what pages cost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.servers import Server


class CountingRelay:
    """A TCP relay before a server that counts round trips and the bytes of replies."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.round_trips = 0
        self.bytes = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def reset(self) -> None:
        self.round_trips = self.bytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        answered = True

        async def requests() -> None:
            nonlocal answered
            while data := await reader.read(1 << 20):
                # A request after a reply begins a round trip; what follows before a reply belongs to it.
                self.round_trips += answered
                answered = False
                server_writer.write(data)
            server_writer.close()

        async def replies() -> None:
            nonlocal answered
            while data := await server_reader.read(1 << 20):
                answered = True
                self.bytes += len(data)
                writer.write(data)
            writer.close()

        with contextlib.suppress(OSError):
            await asyncio.gather(requests(), replies())


@contextlib.asynccontextmanager
async def relay_to(server: Server) -> AsyncIterator[CountingRelay]:
    relay = CountingRelay(server.port)
    listening = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    relay.port = listening.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        listening.close()
