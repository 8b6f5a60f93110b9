"""A Chromium that reaches loopback only, and notes everything that a good page does not cause."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, Request, async_playwright

from toril.browser.options import find_chromium

# As root, in a container: the pages are our own, on loopback.
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nothing but loopback has an address
]
AXE = Path(__file__).parents[1] / "interop/node/node_modules/axe-core/axe.min.js"


@contextlib.asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


class WatchedPage:
    """A tab. `problems` are console errors, refused requests, dialogs and errors of scripts."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.problems: list[str] = []
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("request", self._note_request)

    def _note_console(self, message: Any) -> None:
        # A page that is not there is what some tests ask for.
        if (
            message.type in ("error", "warning")
            and "the server responded with a status of" not in message.text
        ):
            self.problems.append(f"console: {message.text}")

    def _note_request(self, request: Request) -> None:
        if urlsplit(request.url).hostname != "127.0.0.1":
            self.problems.append(f"request: {request.url}")

    async def open(self, path: str) -> None:
        await self.page.goto(self.url + path)

    async def barriers(self) -> list[str]:
        """Returns what axe-core finds that is serious or critical."""
        await self.page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
        found = await self.page.evaluate("async () => JSON.stringify((await axe.run()).violations)")
        return [
            f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
            for one in json.loads(found)
            if one["impact"] in ("serious", "critical")
        ]


@contextlib.asynccontextmanager
async def watched_page(browser: Browser, url: str, **options: Any) -> AsyncIterator[WatchedPage]:
    """A new tab with settings of its own; leaving it fails if there were problems."""
    context = await browser.new_context(**options)
    try:
        watched = WatchedPage(await context.new_page(), url)
        yield watched
        assert watched.problems == []
    finally:
        await context.close()
