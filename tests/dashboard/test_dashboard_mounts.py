"""The dashboard inside other applications and behind a proxy that changes paths."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.dashboard.conftest import MakePerson, Person, running_dashboard
from tests.dashboard.mounted_pages import PROXY_HOST, links_of, rewriting_proxy
from toril import Queue
from toril.dashboard import DashboardOptions, ServerOptions, create_app


@pytest.fixture
async def emails(valkey_url: str, prefix: str) -> None:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {})


@pytest.mark.usefixtures("emails")
async def test_mounted_in_fastapi_all_links_lead_to_pages(valkey_url: str, prefix: str) -> None:
    dashboard = create_app(
        DashboardOptions(servers=[ServerOptions(redis=valkey_url, prefix=prefix)], allow_writes=True)
    )
    site = FastAPI()
    site.mount("/tools/queues", dashboard)
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(site), base_url="http://127.0.0.1"
        ) as client:
            assert len(await links_of(client, "/tools/queues")) > 20
            assert (await client.get("/docs")).status_code == 200
    finally:
        await dashboard.state.dashboard.close()


@pytest.mark.usefixtures("emails")
async def test_mounted_beside_django_all_links_lead_to_pages(valkey_url: str, prefix: str) -> None:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="x" * 50)
        django.setup()
    from django.core.asgi import get_asgi_application

    site = get_asgi_application()
    dashboard = create_app(DashboardOptions(servers=[ServerOptions(redis=valkey_url, prefix=prefix)]))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].startswith("/queues/"):
            await dashboard({**scope, "root_path": scope.get("root_path", "") + "/queues"}, receive, send)
        else:
            await site(scope, receive, send)

    try:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            assert len(await links_of(client, "/queues")) > 15
    finally:
        await dashboard.state.dashboard.close()


urlpatterns: list[Any] = []


@pytest.mark.usefixtures("emails")
async def test_behind_a_proxy_that_removes_a_path_and_changes_the_host(valkey_url: str, prefix: str) -> None:
    options = ["--root-path", "/ops/queues", "--allow-writes", "--proxy-user-header", "x-user"]
    options += ["--allowed-host", PROXY_HOST]
    async with (
        running_dashboard(valkey_url, prefix, *options) as dashboard,
        rewriting_proxy(dashboard.url, "/ops/queues", **{"x-user": "anna"}) as client,
    ):
        assert len(await links_of(client, "/ops/queues")) > 20
        form = {"act": "pause", "token": client.cookies["toril_csrf"]}
        headers = {"origin": "https://queues.example.com", "sec-fetch-site": "same-origin"}
        reply = await client.post("/ops/queues/queues/emails/act", data=form, headers=headers)
        assert (reply.status_code, reply.headers["location"]) == (303, "/ops/queues/queues/emails")
        headers["origin"] = "https://evil.example.com"
        assert (
            await client.post("/ops/queues/queues/emails/act", data=form, headers=headers)
        ).status_code == 403


@pytest.mark.usefixtures("emails")
async def test_people_who_share_a_live_page_get_their_own_tokens(person_with: MakePerson) -> None:
    first: Person = await person_with(allow_writes=True, live_seconds=0.1)
    app = first.app
    tokens = ["a" * 32, "b" * 32]
    received: list[str] = []
    arrived = asyncio.Event()

    async def listen(token: str) -> None:
        scope = {
            "type": "http", "method": "GET", "path": "/live", "query_string": b"page=/queues/emails", "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), (b"cookie", f"toril_csrf={token}".encode())], "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "http_version": "1.1",
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        async def send(message: Any) -> None:
            text = message.get("body", b"").decode()
            if "token" in text:
                received.append(text)
                if len(received) >= 2:
                    arrived.set()

        await app(scope, receive, send)

    tabs = [asyncio.create_task(listen(token)) for token in tokens]
    await asyncio.wait_for(arrived.wait(), 10)
    assert app.state.dashboard.live.tabs == 2
    assert len(app.state.dashboard.live._views) == 1
    await app.state.dashboard.live.close()
    await asyncio.wait(tabs)
    for token, other in (tokens, tokens[::-1]):
        (mine,) = [text for text in received if f'value="{token}"' in text]
        assert other not in mine
