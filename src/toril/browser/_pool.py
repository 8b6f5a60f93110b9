"""A pool of isolated pages over browsers that are replaced before they grow fat.

Guarantee: every page has a context and a way out of its own (no cookie, cache, storage or connection of another job),
never more pages at once than asked for, and after `close` no browser process is left. A browser, or its driver, that
does not answer is killed and replaced: no job waits for it longer than its own time, or ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from toril.browser._gate import Gate, Resolve, system_resolve
from toril.browser.options import BrowserOptions, find_chromium
from toril.errors import BrowserCrashed

# No traffic of the browser's own, nothing that goes around the proxy. The switch for WebRTC has had two names; Chromium
# ignores what it does not know.
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
)
# Memory is measured once in so many pages: asking costs about a millisecond.
PAGES_PER_LOOK = 5
# A browser that answers at all opens a page, closes it, or ends, within this time, on a busy machine too.
ANSWER_SECONDS = 10.0
LAUNCH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Tab:
    """A page, and the only way out of it."""

    page: Page
    gate: Gate


class _Housed:
    """A browser, the pages it has open, and whether it may open more."""

    def __init__(self, browser: Browser, pid: int | None) -> None:
        self.browser = browser
        self.open = 0
        self.served = 0
        self.retiring = False
        self._pid = pid
        self._born = None if pid is None else _born(pid)

    @property
    def usable(self) -> bool:
        return not self.retiring and self.browser.is_connected()

    def kill(self) -> None:
        """Ends its processes, whatever state they are in: Chromium has a process group of its own."""
        self.retiring = True
        pid, self._pid = self._pid, None
        if pid is None or _born(pid) != self._born:
            return  # it ended by itself, and its number may be another's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)


class BrowserPool:
    """Pages for jobs."""

    def __init__(self, options: BrowserOptions | None = None, *, resolve: Resolve = system_resolve) -> None:
        self.options = options or BrowserOptions()
        # Where a browser goes on its own account, outside every page; pages have gates of their own.
        self.gate = Gate(self.options, resolve)
        self.launched = 0  # browsers started so far
        self._resolve = resolve
        self._room = asyncio.Semaphore(self.options.contexts)
        self._starting = asyncio.Lock()
        self._playwright: Playwright | None = None
        self._current: _Housed | None = None
        self._houses: set[_Housed] = set()

    @asynccontextmanager
    async def page(self) -> AsyncIterator[Tab]:
        """A page in a context of its own; waits while all are taken."""
        async with self._room, Gate(self.options, self._resolve, self.options.max_page_bytes) as gate:
            house = await self._house()
            house.open += 1
            house.served += 1
            contexts: list[BrowserContext] = []
            try:
                yield Tab(await self._open(house, gate, contexts), gate)
            finally:
                house.open -= 1
                await self._let_go(house, contexts)

    async def _open(self, house: _Housed, gate: Gate, contexts: list[BrowserContext]) -> Page:
        """A page; its context is noted in `contexts` as soon as there is one."""
        try:
            async with asyncio.timeout(max(self.options.timeout, ANSWER_SECONDS)):
                contexts.append(await house.browser.new_context(**self._manners(gate)))
                return await contexts[0].new_page()
        except TimeoutError as error:
            house.kill()
            raise BrowserCrashed("the browser does not answer") from error
        except PlaywrightError as error:
            house.retiring = True
            raise BrowserCrashed("the browser gave no page") from error

    def _manners(self, gate: Gate) -> dict[str, Any]:
        width, height = self.options.viewport
        given = self.options.user_agent
        return {
            "viewport": {"width": width, "height": height},
            "accept_downloads": False,
            "service_workers": "block",
            "java_script_enabled": self.options.java_script,
            "proxy": _through(gate),
            **({} if given is None else {"user_agent": given}),
        }

    async def _let_go(self, house: _Housed, contexts: list[BrowserContext]) -> None:
        for context in contexts:
            with contextlib.suppress(PlaywrightError):
                await self._answered(house, context.close())
        if not house.retiring:
            house.retiring = await self._is_spent(house)
        if house.retiring and house.open == 0:
            await self._end(house)

    @staticmethod
    async def _answered(house: _Housed, step: Any) -> Any:
        """What a browser answers; one that gives no answer is killed."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await step
        except TimeoutError:
            house.kill()
            return None

    async def _is_spent(self, house: _Housed) -> bool:
        if house.served >= self.options.pages_per_browser or not house.browser.is_connected():
            return True
        if house.served % PAGES_PER_LOOK:
            return False
        memory = await self._answered(house, memory_of(house.browser))
        return memory is None or memory > self.options.max_browser_memory

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
        if self._playwright is not None:
            try:
                return await self._start_browser(self._playwright)
            except (PlaywrightError, TimeoutError):
                await self._dismiss_driver()  # it may be the one that is gone: a new one tells
        self._playwright = await async_playwright().start()
        try:
            return await self._start_browser(self._playwright)
        except (PlaywrightError, TimeoutError) as error:
            why = str(error).partition("\n")[0] or "it took too long"
            raise BrowserCrashed(f"Chromium did not start: {why}") from error

    async def _start_browser(self, playwright: Playwright) -> _Housed:
        async with asyncio.timeout(LAUNCH_SECONDS):
            browser = await playwright.chromium.launch(
                executable_path=self.options.executable or find_chromium(),
                args=list(ARGUMENTS),
                chromium_sandbox=os.geteuid() != 0,  # Chromium has no sandbox for root
                proxy=_through(self.gate),
            )
            first, *_ = await processes_of(browser)
        self.launched += 1
        house = _Housed(browser, first)
        self._houses.add(house)
        return house

    async def _end(self, house: _Housed) -> None:
        self._houses.discard(house)
        with contextlib.suppress(PlaywrightError):
            await self._answered(house, house.browser.close())
        house.kill()

    async def _dismiss_driver(self) -> None:
        playwright, self._playwright = self._playwright, None
        if playwright is not None:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await playwright.stop()

    async def close(self) -> None:
        """Ends all browsers. May be called twice."""
        self._current = None
        for house in list(self._houses):
            await self._end(house)
        await self._dismiss_driver()
        await self.gate.close()


def _through(gate: Gate) -> ProxySettings:
    """All traffic goes through the gate, that to loopback, too."""
    return {"server": gate.url, "bypass": "<-loopback>"}


async def processes_of(browser: Browser) -> list[int]:
    """The process ids of a browser: its own first, then those of its pages and services."""
    session = await browser.new_browser_cdp_session()
    try:
        info = await session.send("SystemInfo.getProcessInfo")
    finally:
        await session.detach()
    found = sorted(info["processInfo"], key=lambda process: process["type"] != "browser")
    return [int(process["id"]) for process in found]


def _born(pid: int) -> str | None:
    """When a process began, in the kernel's own words; None when it is gone, or nobody tells."""
    try:
        about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return about.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


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
