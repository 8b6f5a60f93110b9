"""What browser jobs return, and what they must not reach, on a real Chromium."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import signal
from typing import Any

import pytest

from tests.browser.site import Site
from tests.waiting import until
from toril import Envelope, ErrorCategory, categorize_error
from toril.browser import (
    AddressRefused,
    BrowserCrashed,
    BrowserOptions,
    BrowserTasks,
    BrowserTimeout,
    PageBusy,
    PageRefused,
    PageTooLarge,
    PageUnreachable,
    ResultTooLarge,
)
from toril.browser._pool import processes_of
from toril.errors import PayloadMismatch
from toril.protocol.envelope import error_text

pytestmark = pytest.mark.timeout(120)


def job(task: str, **payload: Any) -> Envelope:
    return Envelope.new(task, payload)


async def extract(tasks: BrowserTasks, url: str, selector: str = ".content", **more: Any) -> dict[str, Any]:
    return await tasks["navigate_extract"](job("navigate_extract", url=url, selector=selector, **more))


async def test_the_selected_text_attributes_and_html_come_back(tasks: BrowserTasks, site: Site) -> None:
    result = await extract(tasks, site.url())
    assert (result["text"], result["status"], result["title"]) == ("Grüezi mitenand", 200, "A page")
    (match,) = result["matches"]
    assert match["attributes"] == {"class": "content", "data-kind": "greeting"}
    assert match["html"].startswith('<p class="content"')


async def test_all_matches_come_back_if_asked_for(tasks: BrowserTasks, site: Site) -> None:
    result = await extract(tasks, site.url(), all=True)
    assert [match["text"] for match in result["matches"]] == ["Grüezi mitenand", "Adieu"]
    assert result["count"] == 2


async def test_what_a_script_draws_later_is_waited_for(tasks: BrowserTasks, site: Site) -> None:
    assert (await extract(tasks, site.url("/late")))["text"] == "drawn by a script"


async def test_a_screenshot_is_a_picture_and_a_pdf_is_a_pdf(tasks: BrowserTasks, site: Site) -> None:
    picture = await tasks["screenshot"](job("screenshot", url=site.url(), full_page=True))
    part = await tasks["screenshot"](job("screenshot", url=site.url(), selector=".content", format="jpeg"))
    printed = await tasks["pdf"](job("pdf", url=site.url()))
    assert base64.b64decode(picture["base64"]).startswith(b"\x89PNG")
    assert base64.b64decode(part["base64"]).startswith(b"\xff\xd8")
    assert base64.b64decode(printed["base64"]).startswith(b"%PDF")
    assert printed["content_type"] == "application/pdf"


async def test_a_private_address_is_refused_without_permission(site: Site) -> None:
    async with BrowserTasks() as tasks:
        with pytest.raises(AddressRefused) as refused:
            await extract(tasks, site.url())
    assert site.visits == []
    assert error_text(refused.value) == "address_refused"
    assert categorize_error(refused.value) is ErrorCategory.PERMANENT
    assert tasks.pool.launched == 0


async def test_a_name_that_leads_to_a_private_address_is_refused(site: Site) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with BrowserTasks(resolve=resolve) as tasks:
        with pytest.raises(AddressRefused, match=r"innocent\.example \(127\.0\.0\.1\)"):
            await extract(tasks, site.url(host="innocent.example"))
    assert site.visits == []


async def test_a_name_that_changes_its_address_after_the_check_is_refused(site: Site) -> None:
    answers = itertools.chain(["93.184.215.14"], itertools.repeat("127.0.0.1"))

    async def resolve(host: str, port: int) -> list[str]:
        return [next(answers)]

    async with BrowserTasks(BrowserOptions(timeout=15), resolve=resolve) as tasks:
        with pytest.raises(AddressRefused):
            await extract(tasks, site.url(host="rebinding.example"))
    assert site.visits == []


async def test_a_redirect_to_a_private_address_is_refused(tasks: BrowserTasks, site: Site) -> None:
    with Site("127.0.0.2") as inner:
        site.redirects["/away"] = inner.url()
        with pytest.raises(AddressRefused):
            await extract(tasks, site.url("/away"))
        assert inner.visits == []


async def test_a_redirect_to_a_private_address_over_https_is_refused(tasks: BrowserTasks, site: Site) -> None:
    site.redirects["/away"] = "https://127.0.0.2:8443/"
    with pytest.raises(AddressRefused):
        await extract(tasks, site.url("/away"))


async def test_parts_of_a_page_from_private_addresses_are_not_loaded(tasks: BrowserTasks, site: Site) -> None:
    with Site("127.0.0.2") as inner:
        site.pages["/mixed"] = f"""<p class="content">the page</p><img src="{inner.url("/a.png")}">
            <iframe src="{inner.url("/frame")}"></iframe><script>fetch("{inner.url("/fetched")}")</script>"""
        assert (await extract(tasks, site.url("/mixed")))["text"] == "the page"
        assert inner.visits == []


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"url": "file:///etc/passwd", "selector": "body"},
        {"url": "chrome://version", "selector": "body"},
        {"url": "javascript:alert(1)", "selector": "body"},
        {"url": "http://", "selector": "body"},
        {"url": "http://user:secret@example.com", "selector": "body"},
        {"url": "http://example.com:99999", "selector": "body"},
        {"url": "https://example.com"},
        {"url": "https://example.com", "selector": 7},
        {"url": "https://example.com", "selector": "p", "timeout": 0},
        {"url": "https://example.com", "selector": "p", "wait_until": "someday"},
    ],
)
async def test_a_payload_that_makes_no_sense_is_a_validation_error(payload: dict[str, Any]) -> None:
    async with BrowserTasks() as tasks:
        with pytest.raises(PayloadMismatch) as refused:
            await tasks["navigate_extract"](job("navigate_extract", **payload))
    assert "secret" not in str(refused.value)


async def test_a_page_that_never_loads_is_given_up_in_time(tasks: BrowserTasks, site: Site) -> None:
    with pytest.raises(BrowserTimeout) as late:
        await extract(tasks, site.url("/never"), timeout=1)
    assert error_text(late.value) == "playwright_timeout"
    assert categorize_error(late.value) is ErrorCategory.TRANSIENT


async def test_a_selector_that_matches_nothing_is_given_up_in_time(tasks: BrowserTasks, site: Site) -> None:
    with pytest.raises(BrowserTimeout):
        await extract(tasks, site.url(), ".nowhere", timeout=1)


async def test_errors_of_the_server_are_distinguished(tasks: BrowserTasks, site: Site) -> None:
    with pytest.raises(PageRefused) as missing:
        await extract(tasks, site.url("/missing"))
    with pytest.raises(PageBusy) as busy:
        await extract(tasks, site.url("/busy"))
    assert (error_text(missing.value), error_text(busy.value)) == ("http_404", "http_503")
    assert categorize_error(missing.value) is ErrorCategory.PERMANENT
    assert categorize_error(busy.value) is ErrorCategory.TRANSIENT


async def test_a_server_that_is_not_there_may_be_there_later(tasks: BrowserTasks) -> None:
    with pytest.raises((PageUnreachable, PageBusy)) as away:
        await extract(tasks, "http://127.0.0.1:1/")
    assert categorize_error(away.value) is ErrorCategory.TRANSIENT


async def test_a_page_that_never_ends_is_cut_off(site: Site) -> None:
    options = BrowserOptions(allow=("127.0.0.1",), max_page_bytes=1_000_000, timeout=15)
    async with BrowserTasks(options) as tasks:
        with pytest.raises(PageTooLarge):
            await extract(tasks, site.url("/flood"))


async def test_a_result_that_is_too_large_is_refused(site: Site) -> None:
    options = BrowserOptions(allow=("127.0.0.1",), max_result_bytes=2_000)
    async with BrowserTasks(options) as tasks:
        with pytest.raises(ResultTooLarge):
            await extract(tasks, site.url("/endless-text"))
        with pytest.raises(ResultTooLarge):
            await tasks["pdf"](job("pdf", url=site.url()))


async def test_a_job_has_no_access_to_data_of_another(tasks: BrowserTasks, site: Site) -> None:
    seen = [(await extract(tasks, site.url("/cookies")))["text"] for _ in range(3)]
    assert seen == ["no cookies"] * 3


async def test_browsers_are_replaced_after_so_many_pages(site: Site) -> None:
    options = BrowserOptions(allow=("127.0.0.1",), pages_per_browser=2)
    async with BrowserTasks(options) as tasks:
        for _ in range(5):
            await extract(tasks, site.url())
        assert tasks.pool.launched == 3
        assert len(tasks.pool._browsers) == 1


async def test_a_browser_that_has_grown_too_large_is_replaced(site: Site) -> None:
    options = BrowserOptions(allow=("127.0.0.1",), max_browser_memory=1)
    async with BrowserTasks(options) as tasks:
        for _ in range(6):
            await extract(tasks, site.url())
        assert tasks.pool.launched == 2


async def test_a_browser_that_is_killed_fails_its_jobs_for_now_and_is_replaced(
    tasks: BrowserTasks, site: Site
) -> None:
    visit = asyncio.create_task(extract(tasks, site.url("/never")))
    await until(lambda: "/never" in site.visits, "the page is asked for", within=30)
    assert tasks.pool._current is not None
    for pid in await processes_of(tasks.pool._current.browser):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises((BrowserCrashed, PageUnreachable)) as crash:
        await visit
    assert categorize_error(crash.value) is ErrorCategory.TRANSIENT
    assert (await extract(tasks, site.url()))["text"] == "Grüezi mitenand"


async def test_more_jobs_than_contexts_wait_for_their_turn(site: Site) -> None:
    async with BrowserTasks(BrowserOptions(allow=("127.0.0.1",), contexts=2)) as tasks:
        results = await asyncio.gather(*(extract(tasks, site.url()) for _ in range(5)))
        assert {one["text"] for one in results} == {"Grüezi mitenand"}
        assert tasks.pool.launched == 1
