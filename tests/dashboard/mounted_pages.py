"""Pages below a path: all their links, and a proxy that removes that path and changes the host."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

import httpx

LINK = re.compile(r'(?:href|action|src|hx-sse:connect)="([^"#][^"]*)"')
PATHS = ("/", "/queues/emails", "/failures", "/queues/emails/settings", "/audit", "/queues/nobody")
PROXY_HOST = "queues.example.com"


async def links_of(client: httpx.AsyncClient, base: str) -> set[str]:
    """Loads pages below a path; returns all links, after each was followed once."""
    found: set[str] = set()
    for path in PATHS:
        reply = await client.get(base + path)
        assert reply.status_code == (404 if "nobody" in path else 200), reply.text[:500]
        found.update(link.replace("&amp;", "&") for link in LINK.findall(reply.text))
    for link in found:
        assert link.startswith(f"{base}/"), link
        if "/live" not in link and "/act" not in link and "/selection" not in link:
            assert (await client.get(link)).status_code in (200, 303), link
    return found


@contextlib.asynccontextmanager
async def rewriting_proxy(url: str, base: str, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client behind a proxy that removes `base` from paths, changes the host and adds headers."""
    async with httpx.AsyncClient(base_url=url.rstrip("/").removesuffix(base)) as inside:

        async def proxy(request: httpx.Request) -> httpx.Response:
            path = request.url.raw_path.decode().removeprefix(base)
            given = [(name, value) for name, value in request.headers.multi_items() if name != "host"]
            sent = inside.build_request(
                request.method, path, headers=[*given, *headers.items()], content=await request.aread()
            )
            return await inside.send(sent)

        transport = httpx.MockTransport(proxy)
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{PROXY_HOST}") as client:
            yield client
