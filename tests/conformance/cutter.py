"""A way to a server that can be cut after a command ran and before its reply arrives."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self


class Cutter:
    """A proxy on loopback. Once armed, it swallows the next reply of the server and closes that connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._armed = 0
        self.cuts = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def arm(self) -> None:
        self._armed += 1

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            up = asyncio.ensure_future(_copy(reader, back))
            try:
                await self._replies(there, writer)
            finally:
                up.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await up
                back.close()
                writer.close()

    async def _replies(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await there.read(65536):
            if self._armed:
                self._armed -= 1
                self.cuts += 1
                return
            writer.write(chunk)
            await writer.drain()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(65536):
        target.write(chunk)
        await target.drain()
