"""Every act of the dashboard, done once in a real Chromium with the forms of its pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.dashboard.browsing import WatchedPage, watched_page
from tests.dashboard.conftest import RunningDashboard, running_dashboard
from toril import Job, PermanentError, Queue, RateLimit, Worker

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("orders", redis=valkey_url, prefix=prefix) as queue:
        await queue.open()
        yield queue


@pytest.fixture
async def dashboard(valkey_url: str, prefix: str, queue: Queue) -> AsyncIterator[RunningDashboard]:
    await queue.add("first", {})
    async with running_dashboard(valkey_url, prefix, "--allow-writes", "--live-seconds", "0.3") as running:
        yield running


async def fail_jobs(queue: Queue, url: str, prefix: str, count: int) -> None:
    async def handle(_: Job) -> None:
        raise PermanentError("the warehouse is closed")

    await queue.add_bulk([("pack", {"n": n}) for n in range(count)])
    async with Worker(queue.name, handle, redis=url, prefix=prefix) as worker:
        await worker.run_until_idle()


async def press(tab: WatchedPage, act: str, *, confirm: bool = False) -> None:
    """Presses the button of an act, and the one that confirms it."""
    await tab.page.locator(f"button[name=act][value={act}]").first.click()
    if confirm:
        await tab.page.get_by_role("button", name="Yes, do it").click()
    await tab.page.wait_for_load_state()


async def operation_ends(tab: WatchedPage, state: str = "done") -> None:
    await tab.page.wait_for_url("**/operations/*")
    await expect(tab.page.locator(".head .state")).to_contain_text(state, timeout=20_000)


async def test_acts_on_a_queue(browser: Browser, dashboard: RunningDashboard, queue: Queue) -> None:
    async with watched_page(browser, dashboard.url) as tab:
        page = tab.page
        await tab.open("/queues/orders")
        await press(tab, "pause")
        await expect(page.locator("button[value=resume]")).to_be_visible()
        assert await queue.is_paused()
        await press(tab, "resume")
        await expect(page.locator("button[value=pause]")).to_be_visible()
        await page.get_by_role("link", name="Settings").click()
        await page.locator("input[name=limit]").fill("7")
        await press(tab, "concurrency")
        assert await queue.get_global_concurrency() == 7
        await tab.open("/queues/orders/settings")
        await page.locator("input[name=count]").fill("10")
        await page.locator("input[name=period]").fill("0.5")
        await press(tab, "rate-limit")
        assert await queue.get_global_rate_limit() == RateLimit(10, 0.5)
        await tab.open("/queues/orders/settings")
        await page.locator("select[name=state]").select_option("waiting")
        await press(tab, "clean", confirm=True)
        await operation_ends(tab)
        assert (await queue.get_job_counts()).waiting == 0
        await queue.add("second", {})
        await tab.open("/queues/orders/settings")
        await press(tab, "drain", confirm=True)
        await operation_ends(tab)
        assert (await queue.get_job_counts()).waiting == 0
        await tab.open("/queues/orders/settings")
        await press(tab, "obliterate")
        await page.locator("input[name=typed]").fill("orders")
        await page.get_by_role("button", name="Yes, do it").click()
        await operation_ends(tab)
        await tab.open("/audit")
        for act in ("pause", "resume", "concurrency", "rate-limit", "clean", "drain", "obliterate"):
            await expect(page.locator("main").get_by_text(act, exact=True).first).to_be_visible()


async def test_acts_on_a_job(
    browser: Browser, dashboard: RunningDashboard, queue: Queue, valkey_url: str, prefix: str
) -> None:
    async with watched_page(browser, dashboard.url) as tab:
        page = tab.page
        await tab.open("/queues/orders/new")
        await page.locator("input[name=name]").fill("ship")
        await page.locator("textarea[name=data]").fill('{"n": 9007199254740993}')
        await page.locator("input[name=delay]").fill("600")
        await press(tab, "add")
        (job,) = await queue.get_delayed()
        assert job.data == {"n": 9007199254740993}
        await tab.open(f"/queues/orders/job?id={job.id}")
        await expect(page.locator(".value").first).to_contain_text("9007199254740993")
        await page.locator("input[name=delay]").fill("900")
        await press(tab, "delay")
        await press(tab, "promote")
        await expect(page.locator(".head .state")).to_contain_text("waiting")
        await page.locator("input[name=priority]").fill("5")
        await press(tab, "priority")
        await expect(page.locator(".head .state")).to_contain_text("prioritized")
        await page.get_by_role("link", name="Duplicate").click()
        await expect(page.locator("textarea[name=data]")).to_have_value(re.compile("9007199254740993"))
        await press(tab, "add")
        assert (await queue.get_job_counts()).waiting == 2  # the first one and the copy
        await tab.open(f"/queues/orders/job?id={job.id}")
        await press(tab, "cancel")
        await expect(page.locator("h1")).to_have_text("orders")  # the cancelled job has no page any more
        (copy, *_) = await queue.get_waiting()
        await tab.open(f"/queues/orders/job?id={copy.id}")
        await press(tab, "remove", confirm=True)
        assert await queue.get_job(copy.id) is None
        await queue.drain()
        await fail_jobs(queue, valkey_url, prefix, 1)
        (failed,) = await queue.get_failed()
        await tab.open(f"/queues/orders/job?id={failed.id}")
        await press(tab, "retry")
        await expect(page.locator(".head .state")).to_contain_text("waiting")


async def test_an_active_job_is_cancelled(
    browser: Browser, dashboard: RunningDashboard, queue: Queue, valkey_url: str, prefix: str
) -> None:
    started = asyncio.Event()

    async def handle(_: Job) -> None:
        started.set()
        await asyncio.Event().wait()

    async with (
        Worker("orders", handle, redis=valkey_url, prefix=prefix, lock_duration=4),
        watched_page(browser, dashboard.url) as tab,
    ):
        await started.wait()
        await tab.open("/queues/orders?state=active")
        await tab.page.locator("a.name").first.click()
        await press(tab, "cancel")
        await expect(tab.page.locator(".head .state")).to_contain_text("failed", timeout=20_000)
        await expect(tab.page.locator(".card.error")).to_contain_text("cancelled in the dashboard")


async def test_acts_on_failures_schedulers_and_operations(
    browser: Browser, dashboard: RunningDashboard, queue: Queue, valkey_url: str, prefix: str
) -> None:
    await queue.drain()
    await fail_jobs(queue, valkey_url, prefix, 30)
    await queue.schedulers.upsert("nightly", cron="0 3 * * *", name="report", data={})
    async with watched_page(browser, dashboard.url) as tab:
        page = tab.page
        await tab.open("/failures")
        await page.locator("a.name").first.click()
        await press(tab, "retry")
        await page.locator("input[name=rate]").fill("2")
        await page.get_by_role("button", name="Yes, do it").click()
        await page.wait_for_url("**/operations/*")
        await expect(page.locator("dl.facts")).to_contain_text("of 30")
        await press(tab, "cancel")
        await operation_ends(tab, "cancelled")
        left = (await queue.get_job_counts()).failed
        assert 0 < left < 30
        await press(tab, "continue")
        await expect(page.locator(".head .state")).not_to_contain_text("cancelled")
        await press(tab, "cancel")
        await tab.open("/failures")
        await page.locator("a.name").first.click()
        await press(tab, "remove", confirm=True)
        await operation_ends(tab)
        assert (await queue.get_job_counts()).failed == 0
        await tab.open("/schedulers")
        await press(tab, "run")
        await page.get_by_role("link", name="Edit").click()
        await page.locator("input[name=cron]").fill("0 4 * * *")
        await press(tab, "edit")
        found = await queue.schedulers.get("nightly")
        assert found is not None and found.cron == "0 4 * * *"
        await press(tab, "remove", confirm=True)
        assert await queue.schedulers.get("nightly") is None
