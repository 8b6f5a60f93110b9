"""A pool of isolated pages over browsers that are replaced before they grow fat.

Guarantee: every page has a context of its own (no cookie, cache or storage of another job), never more pages at once
than asked for, and after `close` no browser process is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, BrowserContext, Page, Playwright, async_playwright
from playwright.async_api import Error as PlaywrightError

from toril.browser._gate import Gate, Resolve, system_resolve
from toril.browser.errors import BrowserCrashed
from toril.browser.options import BrowserOptions, find_chromium

# No traffic of the browser's own, nothing that goes around the proxy.
ARGUMENTS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-quic",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--dns-prefetch-disable",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--no-pings",
)
# Memory is measured once in so many pages: asking costs about a millisecond.
PAGES_PER_LOOK = 5


class _Housed:
    """A browser, the pages it has open, and whether it may open more."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.open = 0
        self.served = 0
        self.retiring = False

    @property
    def usable(self) -> bool:
        return not self.retiring and self.browser.is_connected()


class BrowserPool:
    """Pages for jobs."""

    def __init__(self, options: BrowserOptions | None = None, *, resolve: Resolve = system_resolve) -> None:
        self.options = options or BrowserOptions()
        self.gate = Gate(self.options, resolve)
        self.launched = 0  # browsers started so far
        self._room = asyncio.Semaphore(self.options.contexts)
        self._starting = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._current: _Housed | None = None
        self._houses: set[_Housed] = set()

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Page]:
        """A page in a context of its own; waits while all are taken."""
        async with self._room:
            house = await self._house()
            house.open += 1
            house.served += 1
            context: BrowserContext | None = None
            try:
                context = await self._context(house)
                yield await context.new_page()
            finally:
                house.open -= 1
                await self._let_go(house, context)

    async def _context(self, house: _Housed) -> BrowserContext:
        width, height = self.options.viewport
        more: dict[str, Any] = (
            {} if self.options.user_agent is None else {"user_agent": self.options.user_agent}
        )
        try:
            return await house.browser.new_context(
                viewport={"width": width, "height": height},
                accept_downloads=False,
                service_workers="block",
                java_script_enabled=self.options.java_script,
                **more,
            )
        except PlaywrightError as error:
            house.retiring = True
            raise BrowserCrashed("the browser gave no page") from error

    async def _let_go(self, house: _Housed, context: BrowserContext | None) -> None:
        if context is not None:
            with contextlib.suppress(PlaywrightError):
                await context.close()
        if not house.retiring:
            house.retiring = await self._is_spent(house)
        if house.retiring and house.open == 0:
            await self._end(house)

    async def _is_spent(self, house: _Housed) -> bool:
        if house.served >= self.options.pages_per_browser or not house.browser.is_connected():
            return True
        if house.served % PAGES_PER_LOOK:
            return False
        return await memory_of(house.browser) > self.options.max_browser_memory

    # --- browsers -------------------------------------------------------------------------------------------

    async def _house(self) -> _Housed:
        async with self._starting:
            if self._current is None or not self._current.usable:
                retired, self._current = self._current, await self._launch()
                if retired is not None:
                    retired.retiring = True
                    if retired.open == 0:
                        await self._end(retired)
            return self._current

    async def _launch(self) -> _Housed:
        await self.gate.open()
        if self._playwright is None:
            self._playwright = await async_playwright().start()
        try:
            browser = await self._playwright.chromium.launch(
                executable_path=self.options.executable or find_chromium(),
                args=list(ARGUMENTS),
                chromium_sandbox=os.geteuid() != 0,  # Chromium has no sandbox for root
                proxy={
                    "server": self.gate.url,
                    "bypass": "<-loopback>",
                },  # loopback goes through the gate, too
            )
        except PlaywrightError as error:
            raise BrowserCrashed(f"Chromium did not start: {error.message.splitlines()[0]}") from error
        self.launched += 1
        house = _Housed(browser)
        self._houses.add(house)
        return house

    async def _end(self, house: _Housed) -> None:
        self._houses.discard(house)
        with contextlib.suppress(PlaywrightError):
            await house.browser.close()

    async def close(self) -> None:
        """Ends all browsers. May be called twice."""
        self._current = None
        for house in list(self._houses):
            await self._end(house)
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            await playwright.stop()
        await self.gate.close()


async def processes_of(browser: Browser) -> list[int]:
    """The process ids of a browser: its own, and those of its pages and services."""
    session = await browser.new_browser_cdp_session()
    try:
        info = await session.send("SystemInfo.getProcessInfo")
    finally:
        await session.detach()
    return [int(process["id"]) for process in info["processInfo"]]


async def memory_of(browser: Browser) -> int:
    """Resident bytes over all processes of a browser; 0 where nobody tells."""
    try:
        return sum(_resident(pid) for pid in await processes_of(browser))
    except (PlaywrightError, KeyError):
        return 0


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
