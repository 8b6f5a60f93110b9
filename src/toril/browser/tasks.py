"""The browser tasks: extract from a page, take a screenshot, make a PDF.

    async with BrowserTasks(BrowserOptions(contexts=4)) as tasks:
        await StreamWorker("jobs.browser", tasks, redis=…, concurrency=4).run()

Guarantee: a job ends within its time-out, has no access to data of another job, loads and returns no more than its
limits, and reaches no address that is not allowed.

    navigate_extract  {url, selector, all?, wait_until?, timeout?}      → {url, status, title, text, count, matches}
    screenshot        {url, selector?, full_page?, format?, timeout?}   → {url, status, title, content_type, base64}
    pdf               {url, format?, landscape?, timeout?}              → {url, status, title, content_type, base64}
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Locator, Page, Request, Response
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toril.browser._pool import ANSWER_SECONDS, BrowserPool, Tab
from toril.browser._proxy import REFUSED_HEADER, Resolve, system_resolve
from toril.browser._requests import Extract, Pdf, Screenshot, Visit, read_request
from toril.browser._unpacked_bytes import UnpackedBytes
from toril.browser.options import BrowserOptions
from toril.errors import (
    AddressRefused,
    BrowserCrashed,
    BrowserTimeout,
    PageBusy,
    PageIsDownload,
    PageRefused,
    PageTooLarge,
    PageUnreachable,
    PayloadMismatch,
    PermanentError,
    ResultTooLarge,
)
from toril.protocol.codec import to_json
from toril.protocol.envelope import Envelope

Result = dict[str, Any]  # as JSON
Task = Callable[[Envelope], Awaitable[Result]]

_TRANSIENT_STATUSES = (408, 425, 429)
# Chromium's errors for what another attempt does not change.
_CREDENTIALS_NEEDED = "net::ERR_INVALID_AUTH_CREDENTIALS"
_NOT_HTTP = "net::ERR_UNSAFE_REDIRECT"
# Parts of Playwright's messages about invalid selectors.
_SELECTOR_ERRORS = ("while parsing", "is not a valid", "Selector cannot")
# One call in the page instead of many. If the result is too large, only its size is returned.
_DESCRIBE = """(nodes, limit) => {
    const found = [];
    let size = 0;
    for (let at = 0; at < nodes.length; at++) {
        const text = `${nodes[at].innerText ?? nodes[at].textContent ?? ""}`.trim();
        const html = `${nodes[at].outerHTML}`;
        size += text.length + html.length;
        if (size > limit) return size;
        const attributes = {};
        for (const each of nodes[at].attributes) attributes[each.name] = each.value;
        found[at] = {text, html, attributes};
    }
    return found;
}"""


class BrowserTasks(Mapping[str, Task]):
    """Handlers by task type, over one pool of browsers."""

    def __init__(self, options: BrowserOptions | None = None, *, resolve: Resolve = system_resolve) -> None:
        self.options = options or BrowserOptions()
        self.pool = BrowserPool(self.options, resolve=resolve)
        self._tasks: dict[str, Task] = {
            "navigate_extract": self.navigate_extract,
            "screenshot": self.screenshot,
            "pdf": self.pdf,
        }

    def __getitem__(self, name: str) -> Task:
        return self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self) -> None:
        """Ends all browsers."""
        await self.pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the tasks ------------------------------------------------------------------------------------------

    async def navigate_extract(self, envelope: Envelope) -> Result:
        """Returns text, attributes and HTML of the elements that a selector matches."""
        request = read_request(Extract, envelope.payload)
        async with self._visit(request) as (page, page_facts):
            found = page.locator(request.selector)
            await found.first.wait_for(state="attached", timeout=0)  # limited by the time-out of the job
            matches = await self._describe(found if request.all else found.first)
            return self._check_size(
                {**page_facts, "text": matches[0]["text"], "count": len(matches), "matches": matches}
            )

    async def _describe(self, found: Locator) -> list[Result]:
        described: list[Result] | int = await found.evaluate_all(_DESCRIBE, self.options.max_result_bytes)
        if isinstance(described, int):
            raise self._too_large("result", described)
        return described

    async def screenshot(self, envelope: Envelope) -> Result:
        """Returns a screenshot of a page, or of the first element that a selector matches."""
        request = read_request(Screenshot, envelope.payload)
        async with self._visit(request) as (page, page_facts):
            if request.selector is None:
                picture = await page.screenshot(full_page=request.full_page, type=request.format, timeout=0)
            else:
                picture = await page.locator(request.selector).first.screenshot(
                    type=request.format, timeout=0
                )
            return self._file(page_facts, f"image/{request.format}", picture)

    async def pdf(self, envelope: Envelope) -> Result:
        """Returns a page as a PDF."""
        request = read_request(Pdf, envelope.payload)
        async with self._visit(request) as (page, page_facts):
            printed = await page.pdf(
                format=request.format, landscape=request.landscape, print_background=True
            )
            return self._file(page_facts, "application/pdf", printed)

    def _file(self, page_facts: Result, content_type: str, content: bytes) -> Result:
        if len(content) > self.options.max_result_bytes:
            raise self._too_large("file", len(content))
        return {**page_facts, "content_type": content_type, "base64": base64.b64encode(content).decode()}

    def _check_size(self, result: Result) -> Result:
        size = len(to_json(result, field="result"))
        if size > self.options.max_result_bytes:
            raise self._too_large("result", size)
        return result

    def _too_large(self, what: str, size: int) -> ResultTooLarge:
        text = f"the {what} has {size} bytes; {self.options.max_result_bytes} are allowed"
        return ResultTooLarge(text, error_code="result_too_large")

    # --- pages ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _visit(self, request: Visit) -> AsyncIterator[tuple[Page, Result]]:
        """Loads a page; yields it with the facts that every result has."""
        await self._check_address(request.url)
        limit = min(request.timeout or self.options.timeout, self.options.timeout)
        async with self.pool.page() as tab:
            monitor = _PageMonitor(tab, self.options.max_page_bytes)
            try:
                async with asyncio.timeout(limit):
                    await monitor.start()
                    response = await self._goto(tab.page, request)
                    yield tab.page, await _page_facts(tab.page, response)
                    monitor.check()
            except (TimeoutError, PlaywrightTimeout) as error:
                timed_out = BrowserTimeout(f"{request.url} took longer than {limit:g} s")
                raise monitor.problem or timed_out from error
            except PlaywrightError as error:
                raise monitor.problem or _job_error(error, request.url, monitor) from error
            finally:
                await monitor.stop()

    async def _check_address(self, url: str) -> None:
        """Checks the address before a browser is used."""
        parts = urlsplit(url)
        try:
            await self.pool.proxy.check(
                parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
            )
        except OSError as error:
            raise PageUnreachable(url, "net::ERR_NAME_NOT_RESOLVED") from error

    async def _goto(self, page: Page, request: Visit) -> Response | None:
        response = await page.goto(request.url, wait_until=request.wait_until, timeout=0)
        if response is not None and response.status >= 400:
            if REFUSED_HEADER in response.headers:
                raise AddressRefused(urlsplit(response.url).hostname or response.url)
            if response.status >= 500 or response.status in _TRANSIENT_STATUSES:
                raise PageBusy(response.url, response.status)
            raise PageRefused(response.url, response.status)
        return response


def _job_error(error: PlaywrightError, url: str, monitor: _PageMonitor) -> Exception:
    """Returns the error of the job for an error of the browser."""
    message = error.message
    code = next((word.rstrip(":") for word in message.split() if word.startswith("net::ERR_")), "")
    if "Download is starting" in message:
        return PageIsDownload(f"{url} is a file to be saved")
    if code == "net::ERR_TUNNEL_CONNECTION_FAILED" and monitor.refused_host:  # a refusal of an https address
        return AddressRefused(monitor.refused_host)
    if code == _NOT_HTTP:
        return AddressRefused(url, "it redirects to an address that is not http or https")
    if code == _CREDENTIALS_NEEDED:
        return PageRefused(url, 401)
    if code:
        return PageUnreachable(url, code)
    if any(sign in message for sign in _SELECTOR_ERRORS):
        problem = message.partition("\n")[0].partition(": ")[2]
        return PayloadMismatch("payload.selector", problem, "give a CSS or XPath selector")
    if "closed" in message or "crash" in message.lower():
        return BrowserCrashed(message.partition("\n")[0])
    return PageUnreachable(url, "playwright_error")


async def _page_facts(page: Page, response: Response | None) -> Result:
    return {"url": page.url, "status": response.status if response else None, "title": await page.title()}


class _PageMonitor:
    """Counts what a page loads and records refused addresses; closes a page that exceeds its limit.

    The proxy counts the received bytes of all parts of the page, Chromium the unpacked ones. A page opens no windows.
    """

    def __init__(self, tab: Tab, limit: int) -> None:
        self._page = tab.page
        self._proxy = tab.proxy
        self._limit = limit
        self._unpacked = UnpackedBytes(tab.proxy, self)
        self._closing: asyncio.Task[None] | None = None
        self._failed_hosts: list[str] = []  # of the page itself and of its redirects
        self.problem: PermanentError | None = None  # why the page was closed

    async def start(self) -> None:
        self._proxy.on_excess = self._stop_loading
        self._page.on("requestfailed", self._record_failure)
        self._page.on("response", self._record_response)
        self._page.context.on("page", self._close_window)
        await self._unpacked.start(await self._page.context.new_cdp_session(self._page))

    async def stop(self) -> None:
        """Returns when the page is closed, if it had to be closed."""
        self._proxy.on_excess = None
        await self._unpacked.stop()
        if self._closing is not None:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._closing

    def check(self) -> None:
        """Raises the problem for which the page was closed, if any."""
        if self.problem is not None:
            raise self.problem

    @property
    def refused_host(self) -> str | None:
        """The refused host of the page or of a redirect."""
        return next((host for host in self._failed_hosts if self._proxy.has_refused(host)), None)

    def _record_failure(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if request.is_navigation_request() and host:
            self._failed_hosts.append(host)

    def _record_response(self, response: Response) -> None:
        """Closes a page whose script navigates to a refused address: the proxy's error page must not be its result."""
        if REFUSED_HEADER not in response.headers or not response.request.is_navigation_request():
            return
        if response.frame == self._page.main_frame:
            self._stop(AddressRefused(urlsplit(response.url).hostname or response.url))

    @staticmethod
    async def _close_window(window: Page) -> None:
        """Closes a window that Chromium opened though it was told to open none."""
        with contextlib.suppress(PlaywrightError):
            await window.close()

    def check_unpacked(self, total: int) -> None:
        if total > self._limit:
            self._stop_loading()

    def _stop_loading(self) -> None:
        self._stop(PageTooLarge(f"the page loaded more than {self._limit} bytes"))

    def _stop(self, problem: PermanentError) -> None:
        if self.problem is None:
            self.problem = problem
            self._closing = asyncio.ensure_future(self._page.close())
