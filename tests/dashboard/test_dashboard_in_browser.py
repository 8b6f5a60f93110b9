"""The dashboard in a real Chromium that reaches loopback only."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect

from tests.dashboard.browsing import watched_page
from tests.dashboard.conftest import RunningDashboard, running_dashboard
from tests.dashboard.hostile_markup import QUEUE, plant_markup
from tests.dashboard.sample_queues import sample_queues
from tests.hostile_corpus import plant
from tests.servers import Server
from toril import Queue

pytestmark = pytest.mark.timeout(240)

PATHS = (
    "/",
    "/queues/emails?state=failed",
    "/queues/emails?state=completed&q=user1",
    "/queues/thumbnails?state=active",
    "/queues/webhooks?state=delayed",
    "/queues/webhooks?state=prioritized",
    "/queues/webhooks/groups",
    "/queues/stream:jobs.browser?state=failed",
    "/queues/list:jobs.generic",
    "/queues/emails/new",
    "/queues/emails/settings",
    "/queues/reports/scheduler?id=nightly",
    "/failures",
    "/schedulers",
    "/workers",
    "/flows",
    "/history",
    "/health",
    "/operations",
    "/audit",
    "/queues/nobody",
)
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1360, "height": 820}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1360, "height": 820}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 390, "height": 800}},
}


@pytest.fixture
async def dashboard(valkey_url: str, prefix: str) -> AsyncIterator[RunningDashboard]:
    options = ("--allow-writes", "--live-seconds", "0.3")
    async with sample_queues(valkey_url, prefix), running_dashboard(valkey_url, prefix, *options) as running:
        yield running


@pytest.mark.parametrize("look", LOOKS)
async def test_every_page_is_quiet_and_has_no_barrier(
    browser: Browser, dashboard: RunningDashboard, look: str
) -> None:
    async with watched_page(browser, dashboard.url, **LOOKS[look]) as tab:
        for path in PATHS:
            await tab.open(path)
            await expect(tab.page.locator("h1")).to_be_visible()
            assert await tab.barriers() == [], path
            wide = await tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0 or look != "narrow", f"{path} is {wide} px too wide"
        for path in ("/queues/emails?state=failed", "/failures", "/flows"):
            await tab.open(path)
            await tab.page.locator("a.name").first.click()
            await tab.page.wait_for_load_state()
            assert await tab.barriers() == [], path


async def test_failures_are_triaged_and_replayed_by_keyboard_alone(
    browser: Browser, dashboard: RunningDashboard, valkey_url: str, prefix: str
) -> None:
    async with watched_page(browser, dashboard.url) as tab:
        keys = tab.page.keyboard
        await tab.open("/")
        await keys.press("Control+k")
        await keys.type("failures")
        await keys.press("Enter")
        await tab.page.wait_for_url("**/failures")
        await keys.press("j")
        await keys.press("Enter")
        await tab.page.wait_for_url("**/failures?*")
        await keys.press("r")
        await expect(tab.page.locator("h1")).to_have_text("Retry?")
        await tab.page.locator("input[name=rate]").focus()
        await keys.press("Enter")
        await tab.page.wait_for_url("**/operations/*")
        await expect(tab.page.locator(".head .state")).to_contain_text("done", timeout=15_000)
    async with Queue("emails", redis=valkey_url, prefix=prefix, skip_meta=True) as queue:
        assert (await queue.get_job_counts()).waiting > 3  # the children of the flow, and what was retried


async def test_rows_are_selected_by_keys_and_keys_can_be_switched_off(
    browser: Browser, dashboard: RunningDashboard
) -> None:
    async with watched_page(browser, dashboard.url) as tab:
        keys = tab.page.keyboard
        await tab.open("/queues/emails?state=failed")
        for key in ("j", "x", "j", "x", "k"):
            await keys.press(key)
        await expect(tab.page.locator("#selection-count")).to_have_text("2 selected")
        await expect(tab.page.locator("#pulse")).to_contain_text("paused")
        await keys.press("/")
        await expect(tab.page.locator("input[data-search]")).to_be_focused()
        await tab.page.locator("h1").click()
        await keys.press("?")
        await tab.page.locator("#keys-on").uncheck()
        await tab.page.locator("#help button").click()
        await keys.press("/")
        await expect(tab.page.locator("input[data-search]")).not_to_be_focused()


async def test_without_javascript_one_browses_filters_and_retries(
    browser: Browser, dashboard: RunningDashboard
) -> None:
    async with watched_page(browser, dashboard.url, java_script_enabled=False) as tab:
        page = tab.page
        await tab.open("/")
        await page.get_by_role("link", name="emails", exact=True).first.click()
        await page.get_by_role("link", name=re.compile("failed")).first.click()
        await page.locator("input[data-search]").fill("invoice")
        await page.get_by_role("button", name="Apply").click()
        before = await page.locator("tr[data-row]").count()
        assert before > 0
        await page.locator("td.pick input").first.check()
        await page.get_by_role("button", name="Retry").click()
        await page.get_by_role("button", name="Yes, do it").click()
        assert "/operations/" in page.url
        for _ in range(50):
            await page.reload()
            if "done" in await page.locator(".head .state").inner_text():
                break
        await tab.open("/queues/emails?state=failed&q=invoice")
        assert await page.locator("tr[data-row]").count() == before - 1
        assert await page.locator(".js:visible").count() == 0


async def test_a_page_is_live(
    browser: Browser, dashboard: RunningDashboard, valkey_url: str, prefix: str
) -> None:
    async with watched_page(browser, dashboard.url) as tab:
        await tab.open("/queues/webhooks?state=waiting")
        current = tab.page.locator(".tabs a[aria-current] b")
        await expect(current).to_have_text("12")
        async with Queue("webhooks", redis=valkey_url, prefix=prefix, skip_meta=True) as queue:
            await queue.add_bulk([("new-one", {})] * 3)
        await expect(current).to_have_text("15")
        await expect(tab.page.get_by_text("new-one").first).to_be_visible()


async def test_a_hidden_tab_closes_its_stream_and_opens_it_again(
    browser: Browser, dashboard: RunningDashboard
) -> None:
    async with watched_page(browser, dashboard.url) as tab:
        page = tab.page

        async def become(state: str) -> None:
            hidden = "true" if state == "hidden" else "false"
            await page.evaluate(
                f"Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}});"
                "document.dispatchEvent(new Event('visibilitychange'))"
            )

        await tab.open("/")
        await expect(page.locator("#pulse span")).to_have_text("live")
        async with page.expect_event("requestfailed", lambda one: "/live" in one.url):
            await become("hidden")
        async with page.expect_request("**/live**"):
            await become("visible")
        await expect(page.locator("#pulse span")).to_have_text("live")


async def test_a_theme_is_kept_and_times_are_local_or_utc(
    browser: Browser, dashboard: RunningDashboard
) -> None:
    async with watched_page(browser, dashboard.url, timezone_id="Asia/Tokyo") as tab:
        page = tab.page
        await tab.open("/queues/emails?state=completed")
        await page.locator(".theme button[data-theme=dark]").click()
        await page.locator("a.name").first.click()
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        time = page.locator("dl.facts time").first
        await expect(time).not_to_contain_text("UTC")
        local = await time.inner_text()
        await page.keyboard.press("t")
        await expect(time).to_contain_text("UTC")
        assert local not in await time.inner_text()


async def test_nothing_of_the_hostile_corpus_runs(
    browser: Browser, valkey: Server, valkey_url: str, prefix: str
) -> None:
    with valkey.client() as client:
        plant(client, prefix)
        plant_markup(client, prefix)
    async with (
        running_dashboard(valkey_url, prefix, "--allow-writes", "--live-seconds", "0.3") as dashboard,
        watched_page(browser, dashboard.url) as tab,
    ):
        states = ("waiting", "active", "failed", "delayed", "completed", "waiting-children")
        paths = ["/", "/failures", "/schedulers", "/workers", "/flows", "/health"]
        paths += [f"/queues/hostile?state={state}&limit=200" for state in states]
        paths += [f"/queues/{kind}:hostile?state=failed" for kind in ("list", "stream")]
        paths += [f"/queues/{QUEUE}?state={state}&limit=200" for state in ("active", "failed", "delayed")]
        for path in paths:
            await tab.open(path)
            await expect(tab.page.locator("h1")).to_be_visible()
            await expect(tab.page.locator("#pulse span")).to_have_text("live")
        for name, least in (("hostile", 5), (QUEUE, 20)):
            await tab.open(f"/queues/{name}?state=failed&limit=200")
            jobs = await tab.page.locator("a.name").evaluate_all(
                "all => all.map(one => one.getAttribute('href'))"
            )
            assert len(jobs) > least
            for job in jobs:
                await tab.open(job)
                assert await tab.page.title() != ""


async def test_a_server_that_restarts_is_a_banner_and_then_the_page_is_back(
    browser: Browser, start_valkey: Any, prefix: str
) -> None:
    server: Server = start_valkey(appendonly="yes")
    async with Queue("emails", redis=server.url, prefix=prefix) as queue:
        await queue.add("send", {})
    async with (
        running_dashboard(server.url, prefix, "--live-seconds", "0.3") as dashboard,
        watched_page(browser, dashboard.url) as tab,
    ):
        await tab.open("/")
        await expect(tab.page.locator("#pulse span")).to_have_text("live")
        server.kill()
        await expect(tab.page.locator("#away")).to_be_visible(timeout=15_000)
        server.start()
        await expect(tab.page.locator("#away")).to_be_hidden(timeout=5_000)
        await expect(tab.page.get_by_role("link", name="emails").first).to_be_visible()


async def test_a_signal_ends_the_process_with_twenty_streams_open(valkey_url: str, prefix: str) -> None:
    async with running_dashboard(valkey_url, prefix) as dashboard, httpx.AsyncClient() as client:
        opened = asyncio.Semaphore(0)

        async def listen() -> None:
            async with client.stream("GET", f"{dashboard.url}/live?page=/") as stream:
                async for _ in stream.aiter_text():
                    opened.release()

        streams = [asyncio.create_task(listen()) for _ in range(20)]
        for _ in streams:
            await opened.acquire()
        dashboard.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(2):
            code = await dashboard.process.wait()
        await asyncio.wait(streams)
        assert code == -signal.SIGTERM  # uvicorn raises the signal again after its shutdown
        assert [stream.exception() for stream in streams] == [None] * 20, "a stream was cut off"
