"""A dashboard as an ASGI application, and people who use it with and without a browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser

from tests.dashboard.browsing import chromium
from toril.dashboard import DashboardOptions, ServerOptions, create_app

ORIGIN = "http://127.0.0.1:8787"
TOKEN = re.compile(r'name="token" value="([^"]+)"')


class Person:
    """Someone with a browser without scripts: loads pages and sends their forms."""

    def __init__(self, client: httpx.AsyncClient, app: Any) -> None:
        self.client = client
        self.app = app

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.client.get(path, **more)

    async def text(self, path: str, status: int = 200) -> str:
        reply = await self.get(path)
        assert reply.status_code == status, reply.text[:2000]
        return reply.text

    async def token(self) -> str:
        """Returns the token of the forms, from the cookie that the first page set."""
        await self.get("/audit")
        return self.client.cookies["toril_csrf"]

    async def post(
        self, path: str, fields: dict[str, Any], *, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Sends a form of a page, as a browser does."""
        given = {"token": await self.token(), **fields}
        sent = {"origin": ORIGIN, "sec-fetch-site": "same-origin"} if headers is None else headers
        return await self.client.post(path, data=given, headers=sent)

    async def done(self, path: str, fields: dict[str, Any]) -> str:
        """Sends a form that must be accepted; returns where it leads."""
        reply = await self.post(path, fields)
        assert reply.status_code == 303, reply.text[-3000:]
        return reply.headers["location"]


MakePerson = Callable[..., Any]


@pytest.fixture
async def person_with(valkey_url: str, prefix: str) -> AsyncIterator[MakePerson]:
    """Makes a dashboard of the test's queues, and someone who uses it."""
    async with AsyncExitStack() as stack:

        async def make(*, client_address: tuple[str, int] = ("127.0.0.1", 4711), **given: Any) -> Person:
            base = given.pop("base", "")
            servers = given.pop("servers", [ServerOptions(redis=valkey_url, prefix=prefix)])
            app = create_app(DashboardOptions(servers=servers, **given))
            stack.push_async_callback(app.state.dashboard.close)
            transport = httpx.ASGITransport(app=app, client=client_address, root_path=base)
            client = httpx.AsyncClient(transport=transport, base_url=ORIGIN)
            await stack.enter_async_context(client)
            return Person(client, app)

        yield make


@pytest.fixture
async def viewer(person_with: MakePerson) -> Person:
    """Someone at a dashboard that is read only."""
    found: Person = await person_with()
    return found


@pytest.fixture
async def admin(person_with: MakePerson) -> Person:
    """Someone who may change everything."""
    found: Person = await person_with(allow_writes=True)
    return found


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A Chromium that reaches loopback only."""
    async with chromium() as browser:
        yield browser


@dataclass(frozen=True, slots=True)
class RunningDashboard:
    """A process of `toril dashboard`."""

    url: str  # without the slash at its end
    process: asyncio.subprocess.Process

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def running_dashboard(redis: str, prefix: str, *options: str) -> AsyncIterator[RunningDashboard]:
    """Starts `toril dashboard` on a free port, and ends it."""
    command = [sys.executable, "-m", "toril.cli", "dashboard", "--redis", redis, "--prefix", prefix]
    process = await asyncio.create_subprocess_exec(
        *command, "--port", "0", "--json", *options, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        started = json.loads(await process.stdout.readline())
        yield RunningDashboard(started["url"].rstrip("/"), process)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
