"""The browser worker's tasks: extract from a page, take its picture, print it.

    async with BrowserTasks(BrowserOptions(contexts=4)) as tasks:
        await StreamWorker("jobs.browser", tasks, redis=…, concurrency=4).run()

Guarantee: a job ends within its time, sees nothing of another job, loads and returns no more than it may, and
reaches no address that is not allowed.

    navigate_extract  {url, selector, all?, wait_until?, timeout?}      → {url, status, title, text, count, matches}
    screenshot        {url, selector?, full_page?, format?, timeout?}   → {url, status, title, content_type, base64}
    pdf               {url, format?, landscape?, timeout?}              → {url, status, title, content_type, base64}
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Locator, Page, Request, Response
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toril.browser._gate import REFUSED_HEADER, Resolve, system_resolve
from toril.browser._pool import BrowserPool
from toril.browser._requests import Extract, Pdf, Screenshot, Visit, read_request
from toril.browser.errors import (
    AddressRefused,
    BrowserCrashed,
    BrowserTimeout,
    PageBusy,
    PageRefused,
    PageTooLarge,
    PageUnreachable,
    ResultTooLarge,
)
from toril.browser.options import BrowserOptions
from toril.contract.codec import to_json
from toril.contract.envelope import Envelope

Task = Callable[[Envelope], Awaitable[dict[str, Any]]]

_MAY_PASS = (408, 425, 429)
# One step in the page instead of many calls over the wire.
_DESCRIBE = """nodes => nodes.map(node => ({
    text: (node.innerText ?? node.textContent ?? "").trim(),
    html: node.outerHTML,
    attributes: Object.fromEntries([...node.attributes].map(each => [each.name, each.value])),
}))"""


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

    async def navigate_extract(self, envelope: Envelope) -> dict[str, Any]:
        """Text, attributes and HTML of what a selector matches."""
        wanted = read_request(Extract, envelope.payload)
        async with self._visit(wanted) as (page, head):
            found = page.locator(wanted.selector)
            await found.first.wait_for(state="attached", timeout=0)  # the job's own time-out ends it
            matches = await self._describe(found, wanted.all)
            return self._checked(
                {**head, "text": matches[0]["text"], "count": len(matches), "matches": matches}
            )

    @staticmethod
    async def _describe(found: Locator, every: bool) -> list[dict[str, Any]]:
        nodes = found if every else found.first
        described: list[dict[str, Any]] = await nodes.evaluate_all(_DESCRIBE)
        return described

    async def screenshot(self, envelope: Envelope) -> dict[str, Any]:
        """A picture of a page, or of what a selector matches first."""
        wanted = read_request(Screenshot, envelope.payload)
        async with self._visit(wanted) as (page, head):
            if wanted.selector is None:
                picture = await page.screenshot(full_page=wanted.full_page, type=wanted.format, timeout=0)
            else:
                picture = await page.locator(wanted.selector).first.screenshot(type=wanted.format, timeout=0)
            return self._file(head, f"image/{wanted.format}", picture)

    async def pdf(self, envelope: Envelope) -> dict[str, Any]:
        """A page as it would be printed."""
        wanted = read_request(Pdf, envelope.payload)
        async with self._visit(wanted) as (page, head):
            printed = await page.pdf(format=wanted.format, landscape=wanted.landscape, print_background=True)
            return self._file(head, "application/pdf", printed)

    def _file(self, head: dict[str, Any], content_type: str, content: bytes) -> dict[str, Any]:
        if len(content) > self.options.max_result_bytes:
            raise ResultTooLarge(
                f"the file has {len(content)} bytes; {self.options.max_result_bytes} are allowed"
            )
        return {**head, "content_type": content_type, "base64": base64.b64encode(content).decode()}

    def _checked(self, result: dict[str, Any]) -> dict[str, Any]:
        size = len(to_json(result, field="result"))
        if size > self.options.max_result_bytes:
            raise ResultTooLarge(f"the result has {size} bytes; {self.options.max_result_bytes} are allowed")
        return result

    # --- visiting a page ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _visit(self, wanted: Visit) -> AsyncIterator[tuple[Page, dict[str, Any]]]:
        """The page, loaded, and what is said about it in every result."""
        await self._check_first(wanted.url)
        limit = min(wanted.timeout or self.options.timeout, self.options.timeout)
        async with self.pool.page() as page:
            watch = _Watch(page, self.options.max_page_bytes)
            try:
                async with asyncio.timeout(limit):
                    await watch.begin()
                    response = await self._goto(page, wanted)
                    yield page, await _head(page, response)
            except (TimeoutError, PlaywrightTimeout) as error:
                raise BrowserTimeout(f"{wanted.url} took longer than {limit:g} s") from error
            except PlaywrightError as error:
                raise watch.problem or self._translated(error, wanted.url, watch) from error

    async def _check_first(self, url: str) -> None:
        """Most refusals need no browser. A name that does not resolve is left to the browser to tell."""
        parts = urlsplit(url)
        try:
            await self.pool.gate.check(
                parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
            )
        except OSError as error:
            raise PageUnreachable(url, "net::ERR_NAME_NOT_RESOLVED") from error

    async def _goto(self, page: Page, wanted: Visit) -> Response | None:
        response = await page.goto(wanted.url, wait_until=wanted.wait_until, timeout=0)
        if response is not None and response.status >= 400:
            if REFUSED_HEADER in response.headers:
                raise AddressRefused(urlsplit(response.url).hostname or response.url)
            if response.status >= 500 or response.status in _MAY_PASS:
                raise PageBusy(response.url, response.status)
            raise PageRefused(response.url, response.status)
        return response

    def _translated(self, error: PlaywrightError, url: str, watch: _Watch) -> Exception:
        code = next((word.rstrip(":") for word in error.message.split() if word.startswith("net::ERR_")), "")
        if code == "net::ERR_TUNNEL_CONNECTION_FAILED":  # how a refusal looks inside https
            for host in watch.failed_hosts:
                if self.pool.gate.has_refused(host):
                    return AddressRefused(host)
        if code:
            return PageUnreachable(url, code)
        if "closed" in error.message or "crash" in error.message.lower():
            return BrowserCrashed(error.message.splitlines()[0])
        return PageUnreachable(url, "playwright_error")


async def _head(page: Page, response: Response | None) -> dict[str, Any]:
    return {"url": page.url, "status": response.status if response else None, "title": await page.title()}


class _Watch:
    """What a page has loaded so far, and where it was led in vain; a page that loads too much is closed."""

    def __init__(self, page: Page, limit: int) -> None:
        self._page = page
        self._limit = limit
        self._loaded = 0
        self._closing: asyncio.Task[None] | None = None
        self.problem: PageTooLarge | None = None
        self.failed_hosts: list[str] = []  # of the page itself and of where it was redirected

    async def begin(self) -> None:
        self._page.on("requestfailed", self._note_failure)
        session = await self._page.context.new_cdp_session(self._page)
        session.on("Network.dataReceived", self._add)
        await session.send("Network.enable")

    def _note_failure(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if request.is_navigation_request() and host:
            self.failed_hosts.append(host)

    def _add(self, event: dict[str, Any]) -> None:
        self._loaded += int(event.get("dataLength", 0))
        if self._loaded > self._limit and self.problem is None:
            self.problem = PageTooLarge(f"the page loaded more than {self._limit} bytes")
            self._closing = asyncio.ensure_future(self._page.close())
