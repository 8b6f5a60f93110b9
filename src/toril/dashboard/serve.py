"""Serves the dashboard with uvicorn.

Guarantee: an address that other machines can reach is refused without authentication. A signal ends all streams at
once, so that the process ends within two seconds however many tabs are open.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

import uvicorn

from toril.dashboard.app import Dashboard, create_app
from toril.dashboard.options import DashboardOptions, check_bind
from toril.errors import InvalidOption

# After this, requests that still run are cut off.
STOP_SECONDS: Final = 1


class _Server(uvicorn.Server):
    """Ends the streams of open tabs when it stops."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_streams)

    def _end_streams(self) -> None:
        self._ending = asyncio.ensure_future(self._dashboard.live.close())


async def serve(
    options: DashboardOptions,
    *,
    host: str = "127.0.0.1",
    port: int = 8787,
    root_path: str = "",
    on_start: Callable[[str], None] | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM. `root_path` is the path under which a reverse proxy offers the dashboard."""
    check_bind(host, options)
    app = create_app(options)
    dashboard: Dashboard = app.state.dashboard
    listener = _listener(host, port)
    config = uvicorn.Config(
        app,
        root_path=root_path.rstrip("/"),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        lifespan="on",
    )
    server = _Server(config, dashboard)
    name = f"[{host}]" if ":" in host else host
    if on_start is not None:
        on_start(f"http://{name}:{listener.getsockname()[1]}{root_path.rstrip('/')}/")
    await server.serve(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InvalidOption(
                "port", f"{port} of {host} is in use", "choose another one; 0 is any free one"
            ) from None
        raise
    listener.listen()  # who is told the address can connect before the server accepts
    listener.set_inheritable(True)
    return listener
