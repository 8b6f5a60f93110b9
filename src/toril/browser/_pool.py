"""A pool of isolated pages over browsers that are replaced before they use too much memory.

Guarantee: every page has its own context and proxy (no cookie, cache, storage or connection of another job), there are
never more pages at once than `contexts`, and after `close` no browser process is left. A browser or driver that does
not answer is killed and replaced: a job waits for it no longer than its own time-out, or ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.async_api import (
    Browser,
    BrowserContext,
    Page,
    Playwright,
    ProxySettings,
    async_playwright,
)
from playwright.async_api import Error as PlaywrightError

from toril.browser._proxy import USER, AddressProxy, Resolve, system_resolve
from toril.browser.options import MEGABYTE, BrowserOptions, find_chromium
from toril.errors import BrowserCrashed

logger = logging.getLogger("toril.browser")

# No traffic of the browser itself, no traffic outside the proxy, and no windows and shared workers: Chromium does not
# report to a page what these load. The switch for WebRTC has two names; Chromium ignores the one that it does not know.
ARGUMENTS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-quic",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--dns-prefetch-disable",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--no-pings",
    "--disable-shared-workers",
    "--block-new-web-contents",  # for the headless shell; Chromium itself blocks windows without the switch below
)
PLAYWRIGHT_ARGUMENTS_LEFT_OUT = ("--disable-popup-blocking",)
# Memory is measured once in so many pages, because it takes about a millisecond.
PAGES_PER_MEMORY_CHECK = 5
# A working browser opens a page, closes it, or ends, within this time, also on a busy machine.
ANSWER_SECONDS = 10.0
LAUNCH_SECONDS = 60.0
MEMORY_SECONDS = 0.5  # between two measurements while a page is open


@dataclass(frozen=True, slots=True)
class Tab:
    """A page and its proxy."""

    page: Page
    proxy: AddressProxy


class _PooledBrowser:
    """A browser, its number of open pages, and whether it may open more."""

    def __init__(self, browser: Browser, pid: int | None) -> None:
        self.browser = browser
        self.open = 0
        self.pages_served = 0
        self.is_retired = False
        self._pid = pid
        self._start_time = None if pid is None else _start_time(pid)

    @property
    def usable(self) -> bool:
        return not self.is_retired and self.browser.is_connected()

    def kill(self) -> None:
        """Kills its processes: Chromium has its own process group."""
        self.is_retired = True
        pid, self._pid = self._pid, None
        if pid is None or _start_time(pid) != self._start_time:
            return  # it has ended, and its process id may belong to another program
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


class BrowserPool:
    """Pages for jobs."""

    def __init__(self, options: BrowserOptions | None = None, *, resolve: Resolve = system_resolve) -> None:
        self.options = options or BrowserOptions()
        # For connections of the browser outside of pages; every page has its own proxy.
        self.proxy = AddressProxy(self.options, resolve, serves_page=False)
        self.launched = 0  # browsers started so far
        self._resolve = resolve
        self._free_pages = asyncio.Semaphore(self.options.contexts)
        self._starting = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._current: _PooledBrowser | None = None
        self._browsers: set[_PooledBrowser] = set()

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Tab]:
        """Opens a page in its own context; waits while all are in use."""
        async with (
            self._free_pages,
            AddressProxy(self.options, self._resolve, self.options.max_page_bytes) as proxy,
        ):
            pooled = await self._usable_browser()
            pooled.open += 1
            pooled.pages_served += 1
            contexts: list[BrowserContext] = []
            watching = asyncio.create_task(self._watch_memory(pooled), name="toril-browser-memory")
            try:
                yield Tab(await self._open(pooled, proxy, contexts), proxy)
            finally:
                watching.cancel()
                await asyncio.wait([watching])
                pooled.open -= 1
                await self._release(pooled, contexts)

    async def _open(
        self, pooled: _PooledBrowser, proxy: AddressProxy, contexts: list[BrowserContext]
    ) -> Page:
        """Opens a page; its context is added to `contexts` as soon as it exists."""
        try:
            async with asyncio.timeout(max(self.options.timeout, ANSWER_SECONDS)):
                contexts.append(await pooled.browser.new_context(**self._context_options(proxy)))
                return await contexts[0].new_page()
        except TimeoutError as error:
            pooled.kill()
            raise BrowserCrashed("the browser does not answer") from error
        except PlaywrightError as error:
            pooled.is_retired = True
            raise BrowserCrashed("the browser opened no page") from error

    def _context_options(self, proxy: AddressProxy) -> dict[str, Any]:
        width, height = self.options.viewport
        user_agent = self.options.user_agent
        return {
            "viewport": {"width": width, "height": height},
            "accept_downloads": False,
            "service_workers": "block",
            "java_script_enabled": self.options.java_script,
            "proxy": _proxy_settings(proxy),
            **({} if user_agent is None else {"user_agent": user_agent}),
        }

    async def _watch_memory(self, pooled: _PooledBrowser) -> None:
        """Kills a browser that uses too much memory while a page is open: its frames, workers and windows included."""
        while pooled.usable:
            await asyncio.sleep(MEMORY_SECONDS)
            memory = await self._with_timeout(pooled, memory_of(pooled.browser))
            if memory is not None and memory > self.options.max_open_memory:
                logger.warning(
                    "a browser used %d MB, more than max_open_memory, and was killed",
                    memory // MEGABYTE,
                )
                pooled.kill()

    async def _release(self, pooled: _PooledBrowser, contexts: list[BrowserContext]) -> None:
        for context in contexts:
            with contextlib.suppress(PlaywrightError):
                await self._with_timeout(pooled, context.close())
        if not pooled.is_retired:
            pooled.is_retired = await self._must_be_replaced(pooled)
        if pooled.is_retired and pooled.open == 0:
            await self._end(pooled)

    @staticmethod
    async def _with_timeout(pooled: _PooledBrowser, step: Any) -> Any:
        """Returns the result of a call to a browser; a browser that does not answer is killed."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await step
        except TimeoutError:
            pooled.kill()
            return None

    async def _must_be_replaced(self, pooled: _PooledBrowser) -> bool:
        if pooled.pages_served >= self.options.pages_per_browser or not pooled.browser.is_connected():
            return True
        if pooled.pages_served % PAGES_PER_MEMORY_CHECK:
            return False
        memory = await self._with_timeout(pooled, memory_of(pooled.browser))
        return memory is None or memory > self.options.max_browser_memory

    # --- browsers -------------------------------------------------------------------------------------------

    async def _usable_browser(self) -> _PooledBrowser:
        async with self._starting:
            if self._current is None or not self._current.usable:
                retired, self._current = self._current, await self._launch()
                if retired is not None:
                    retired.is_retired = True
                    if retired.open == 0:
                        await self._end(retired)
            return self._current

    async def _launch(self) -> _PooledBrowser:
        await self.proxy.open()
        if self._playwright is not None:
            try:
                return await self._start_browser(self._playwright)
            except (PlaywrightError, TimeoutError):
                await self._stop_driver()  # the driver may have ended: try with a new one
        self._playwright = await async_playwright().start()
        try:
            return await self._start_browser(self._playwright)
        except (PlaywrightError, TimeoutError) as error:
            why = str(error).partition("\n")[0] or "it took too long"
            raise BrowserCrashed(f"Chromium did not start: {why}") from error

    async def _start_browser(self, playwright: Playwright) -> _PooledBrowser:
        async with asyncio.timeout(LAUNCH_SECONDS):
            browser = await playwright.chromium.launch(
                executable_path=self.options.executable or find_chromium(),
                args=list(ARGUMENTS),
                ignore_default_args=list(PLAYWRIGHT_ARGUMENTS_LEFT_OUT),
                chromium_sandbox=os.geteuid() != 0,  # Chromium has no sandbox for root
                proxy=_proxy_settings(self.proxy),
            )
            pid, *_ = await processes_of(browser)
        self.launched += 1
        pooled = _PooledBrowser(browser, pid)
        self._browsers.add(pooled)
        return pooled

    async def _end(self, pooled: _PooledBrowser) -> None:
        self._browsers.discard(pooled)
        with contextlib.suppress(PlaywrightError):
            await self._with_timeout(pooled, pooled.browser.close())
        pooled.kill()

    async def _stop_driver(self) -> None:
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await playwright.stop()

    async def close(self) -> None:
        """Ends all browsers. May be called twice."""
        self._current = None
        for pooled in list(self._browsers):
            await self._end(pooled)
        await self._stop_driver()
        await self.proxy.close()


def _proxy_settings(proxy: AddressProxy) -> ProxySettings:
    """Returns settings that send all traffic through the proxy, also that to loopback."""
    return {"server": proxy.url, "bypass": "<-loopback>", "username": USER, "password": proxy.password}


async def processes_of(browser: Browser) -> list[int]:
    """Returns the process ids of a browser: its main process first, then those of its pages and services."""
    session = await browser.new_browser_cdp_session()
    try:
        info = await session.send("SystemInfo.getProcessInfo")
    finally:
        await session.detach()
    found = sorted(info["processInfo"], key=lambda process: process["type"] != "browser")
    return [int(process["id"]) for process in found]


def _start_time(pid: int) -> str | None:
    """Returns the start time of a process as the kernel writes it; None if it is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return fields.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


async def memory_of(browser: Browser) -> int:
    """Returns the resident bytes of all processes of a browser; 0 if they are unknown."""
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
