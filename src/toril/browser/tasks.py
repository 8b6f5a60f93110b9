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
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Locator, Page, Request, Response
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toril.browser._gate import REFUSED_HEADER, Resolve, system_resolve
from toril.browser._pool import ANSWER_SECONDS, BrowserPool, Tab
from toril.browser._requests import Extract, Pdf, Screenshot, Visit, read_request
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

Task = Callable[[Envelope], Awaitable[dict[str, Any]]]

_MAY_PASS = (408, 425, 429)
# Chromium's words for what another attempt will not change.
_NO_CREDENTIALS = "net::ERR_INVALID_AUTH_CREDENTIALS"
_OTHER_SCHEME = "net::ERR_UNSAFE_REDIRECT"
# How Playwright says that a selector cannot be read.
_NO_SELECTOR = ("while parsing", "is not a valid", "Selector cannot")
# One step in the page instead of many calls over the wire. What is too large stays there: only its size comes back.
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

    async def navigate_extract(self, envelope: Envelope) -> dict[str, Any]:
        """Text, attributes and HTML of what a selector matches."""
        wanted = read_request(Extract, envelope.payload)
        async with self._visit(wanted) as (page, head):
            found = page.locator(wanted.selector)
            await found.first.wait_for(state="attached", timeout=0)  # the job's own time-out ends it
            matches = await self._describe(found if wanted.all else found.first)
            return self._checked(
                {**head, "text": matches[0]["text"], "count": len(matches), "matches": matches}
            )

    async def _describe(self, found: Locator) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] | int = await found.evaluate_all(
            _DESCRIBE, self.options.max_result_bytes
        )
        if isinstance(described, int):
            raise self._too_large("result", described)
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
            raise self._too_large("file", len(content))
        return {**head, "content_type": content_type, "base64": base64.b64encode(content).decode()}

    def _checked(self, result: dict[str, Any]) -> dict[str, Any]:
        size = len(to_json(result, field="result"))
        if size > self.options.max_result_bytes:
            raise self._too_large("result", size)
        return result

    def _too_large(self, what: str, size: int) -> ResultTooLarge:
        text = f"the {what} has {size} bytes; {self.options.max_result_bytes} are allowed"
        return ResultTooLarge(text, error_code="result_too_large")

    # --- visiting a page ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _visit(self, wanted: Visit) -> AsyncIterator[tuple[Page, dict[str, Any]]]:
        """The page, loaded, and what is said about it in every result."""
        await self._check_first(wanted.url)
        limit = min(wanted.timeout or self.options.timeout, self.options.timeout)
        async with self.pool.page() as tab:
            watch = _Watch(tab, self.options.max_page_bytes)
            try:
                async with asyncio.timeout(limit):
                    await watch.begin()
                    response = await self._goto(tab.page, wanted)
                    yield tab.page, await _head(tab.page, response)
                    watch.check()
            except (TimeoutError, PlaywrightTimeout) as error:
                late = BrowserTimeout(f"{wanted.url} took longer than {limit:g} s")
                raise watch.problem or late from error
            except PlaywrightError as error:
                raise watch.problem or _translated(error, wanted.url, watch) from error
            finally:
                await watch.end()

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


def _translated(error: PlaywrightError, url: str, watch: _Watch) -> Exception:
    """What an error of the browser means for the job."""
    message = error.message
    code = next((word.rstrip(":") for word in message.split() if word.startswith("net::ERR_")), "")
    if "Download is starting" in message:
        return PageIsDownload(f"{url} is a file to be saved")
    if code == "net::ERR_TUNNEL_CONNECTION_FAILED" and watch.refused_host:  # how a refusal looks inside https
        return AddressRefused(watch.refused_host)
    if code == _OTHER_SCHEME:
        return AddressRefused(url, "it redirects to what is no web address")
    if code == _NO_CREDENTIALS:
        return PageRefused(url, 401)
    if code:
        return PageUnreachable(url, code)
    if any(sign in message for sign in _NO_SELECTOR):
        problem = message.partition("\n")[0].partition(": ")[2]
        return PayloadMismatch("payload.selector", problem, "give a CSS or XPath selector")
    if "closed" in message or "crash" in message.lower():
        return BrowserCrashed(message.partition("\n")[0])
    return PageUnreachable(url, "playwright_error")


async def _head(page: Page, response: Response | None) -> dict[str, Any]:
    return {"url": page.url, "status": response.status if response else None, "title": await page.title()}


class _Watch:
    """What a page has loaded so far, and where it was led in vain; one that goes too far is closed.

    The gate counts what comes over the wire, for all that belongs to the page; Chromium tells what the page itself
    unpacked of it.
    """

    def __init__(self, tab: Tab, limit: int) -> None:
        self._page = tab.page
        self._gate = tab.gate
        self._limit = limit
        self._unpacked = 0
        self._closing: asyncio.Task[None] | None = None
        self._failed_hosts: list[str] = []  # of the page itself and of where it was redirected
        self.problem: PermanentError | None = None  # why the page was closed

    async def begin(self) -> None:
        self._gate.on_excess = self._stop_loading
        self._page.on("requestfailed", self._note_failure)
        self._page.on("response", self._note_response)
        session = await self._page.context.new_cdp_session(self._page)
        session.on("Network.dataReceived", self._add)
        await session.send("Network.enable")

    async def end(self) -> None:
        """Returns when nothing of ours is left to happen."""
        self._gate.on_excess = None
        if self._closing is not None:
            with contextlib.suppress(PlaywrightError, TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._closing

    def check(self) -> None:
        """Raises if the page was closed, even if what was asked of it came in time."""
        if self.problem is not None:
            raise self.problem

    @property
    def refused_host(self) -> str | None:
        """Where the page, or a redirect of it, was not let through."""
        return next((host for host in self._failed_hosts if self._gate.has_refused(host)), None)

    def _note_failure(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if request.is_navigation_request() and host:
            self._failed_hosts.append(host)

    def _note_response(self, response: Response) -> None:
        """A page that a script leads astray shows our own words then: they must not become its result."""
        if REFUSED_HEADER not in response.headers or not response.request.is_navigation_request():
            return
        if response.frame == self._page.main_frame:
            self._stop(AddressRefused(urlsplit(response.url).hostname or response.url))

    def _add(self, event: dict[str, Any]) -> None:
        self._unpacked += int(event.get("dataLength", 0))
        if self._unpacked > self._limit:
            self._stop_loading()

    def _stop_loading(self) -> None:
        self._stop(PageTooLarge(f"the page loaded more than {self._limit} bytes"))

    def _stop(self, problem: PermanentError) -> None:
        if self.problem is None:
            self.problem = problem
            self._closing = asyncio.ensure_future(self._page.close())
