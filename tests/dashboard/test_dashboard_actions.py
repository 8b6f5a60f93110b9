"""Changes by forms: every act once, what asks once more, and operations on many jobs."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.dashboard.conftest import MakePerson, Person, running_dashboard
from tests.dashboard.replay_kill import check, replay_and_kill
from tests.servers import Server
from tests.waiting import until
from toril import Job, PermanentError, Queue, StreamQueue, StreamWorker, Worker
from toril.dashboard import _failures
from toril.dashboard._texts import url_part
from toril.protocol.worker_options import RateLimit

FORM = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)"')


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        yield queue


async def fail_all(queue: Queue, valkey_url: str, prefix: str, count: int, errors: int = 3) -> list[str]:
    """Adds jobs that fail with one of several errors; returns their ids."""

    async def handle(job: Job) -> None:
        raise PermanentError(f"error {'abc'[job.data['n'] % errors]} of user {job.data['n']}")

    jobs = await queue.add_bulk([("send", {"n": n}) for n in range(count)])
    async with Worker("emails", handle, redis=valkey_url, prefix=prefix, concurrency=100) as worker:
        await worker.run_until_idle()
    return [job.id for job in jobs]


async def confirmed(person: Person, path: str, fields: dict[str, Any], **more: str) -> str:
    """Sends a form, answers the question that follows, and returns where that leads."""
    reply = await person.post(path, fields)
    assert reply.status_code == 200, reply.text[-2000:]
    again: dict[str, Any] = {}
    for name, value in FORM.findall(reply.text):
        again.setdefault(name, []).append(html.unescape(value))
    again.pop("token")
    return await person.done(path, {**again, **more})


async def until_waiting(queue: Queue, count: int) -> None:
    async def is_waiting() -> bool:
        return (await queue.get_job_counts()).waiting >= count

    await until(is_waiting, f"{count} jobs wait")


async def finished(person: Person, path: str) -> str:
    """Waits until an operation has ended; returns its page."""
    async with asyncio.timeout(30):
        while True:
            page = await person.text(path)
            if "s-running" not in page:
                return page
            await asyncio.sleep(0.05)


async def test_a_queue_is_paused_resumed_and_limited(admin: Person, queue: Queue) -> None:
    await queue.open()
    await admin.done("/queues/emails/act", {"act": "pause"})
    assert await queue.is_paused()
    await admin.done("/queues/emails/act", {"act": "resume"})
    assert not await queue.is_paused()
    await admin.done("/queues/emails/act", {"act": "concurrency", "limit": "7"})
    assert await queue.get_global_concurrency() == 7
    await admin.done("/queues/emails/act", {"act": "rate-limit", "count": "10", "period": "0.5"})
    assert await queue.get_global_rate_limit() == RateLimit(10, 0.5)
    await admin.done("/queues/emails/act", {"act": "concurrency", "limit": ""})
    assert await queue.get_global_concurrency() is None


async def test_a_job_is_added_duplicated_and_changed(admin: Person, queue: Queue) -> None:
    await queue.open()
    fields = {"act": "add", "name": "send", "data": '{"n": 1}', "delay": "60", "attempts": "3"}
    await admin.done("/queues/emails/act", fields)
    (job,) = await queue.get_delayed()
    assert (job.data, job.max_attempts) == ({"n": 1}, 3)
    assert "&#34;n&#34;: 1" in await admin.text(f"/queues/emails/new?like={job.id}")
    path, target = "/queues/emails/job/act", {"id": url_part(job.id)}
    await admin.done(path, {**target, "act": "delay", "delay": "900"})
    await job.refresh()
    assert job.delay == 900
    await admin.done(path, {**target, "act": "promote"})
    assert await queue.get_job_state(job.id) == "waiting"
    await admin.done(path, {**target, "act": "priority", "priority": "5"})
    assert await queue.get_job_state(job.id) == "prioritized"
    await admin.done(path, {**target, "act": "cancel"})
    assert await queue.get_job(job.id) is None
    reply = await admin.post("/queues/emails/act", {"act": "add", "name": "send", "data": "{no json"})
    assert (reply.status_code, "is not JSON" in reply.text) == (400, True)


async def test_removing_asks_once_more(admin: Person, queue: Queue) -> None:
    job = await queue.add("send", {})
    fields = {"act": "remove", "id": url_part(job.id)}
    assert (await admin.post("/queues/emails/job/act", fields)).status_code == 200
    assert await queue.get_job(job.id) is not None
    await confirmed(admin, "/queues/emails/job/act", fields)
    assert await queue.get_job(job.id) is None


async def test_a_failed_job_is_retried(admin: Person, queue: Queue, valkey_url: str, prefix: str) -> None:
    (job_id,) = await fail_all(queue, valkey_url, prefix, 1)
    await admin.done("/queues/emails/job/act", {"act": "retry", "id": url_part(job_id)})
    assert await queue.get_job_state(job_id) == "waiting"
    reply = await admin.post("/queues/emails/job/act", {"act": "retry", "id": url_part(job_id)})
    assert reply.status_code == 409


async def test_selected_jobs_are_retried_as_an_operation(
    admin: Person, queue: Queue, valkey_url: str, prefix: str
) -> None:
    ids = await fail_all(queue, valkey_url, prefix, 10)
    fields = {"act": "retry", "state": "failed", "id": [url_part(one) for one in ids[:4]]}
    page = await finished(admin, await confirmed(admin, "/queues/emails/selection", fields))
    assert "s-done" in page and "4 of 4" in page
    counts = await queue.get_job_counts()
    assert (counts.waiting, counts.failed) == (4, 6)
    assert (await admin.post("/queues/emails/selection", {"act": "retry"})).status_code == 400


async def test_all_that_match_are_removed(admin: Person, queue: Queue, valkey_url: str, prefix: str) -> None:
    await fail_all(queue, valkey_url, prefix, 900)
    fields = {"act": "remove", "state": "failed", "all": "1", "q": "ERROR B"}
    page = await finished(admin, await confirmed(admin, "/queues/emails/selection", fields))
    assert "s-done" in page
    left = await queue.get_failed()
    assert len(left) == 600
    assert not any("error b" in (job.failed_reason or "") for job in left)


async def test_waiting_jobs_that_match_are_removed_from_a_list(admin: Person, queue: Queue) -> None:
    await queue.add_bulk([("send", {"kind": "ab"[n % 2]}) for n in range(1500)])
    fields = {"act": "remove", "state": "waiting", "all": "1", "q": '"kind":"a"'}
    await finished(admin, await confirmed(admin, "/queues/emails/selection", fields))
    left = await queue.get_waiting()
    assert len(left) == 750
    assert {job.data["kind"] for job in left} == {"b"}


async def test_failures_are_exact_groups_and_one_of_them_is_retried(
    admin: Person, queue: Queue, valkey_url: str, prefix: str
) -> None:
    await fail_all(queue, valkey_url, prefix, 300)
    page = await admin.text("/failures")
    groups = re.findall(r"<b>(\d+)</b></td>", page)
    assert (groups, "300 of 300 examined" in page) == (["100"] * 3, True)
    link = re.search(r'href="(/failures\?fp=([0-9a-f]{16})[^"]*)"', page)
    assert link is not None
    assert "Newest" in await admin.text(html.unescape(link[1]))
    fields = {"act": "retry", "queue": "emails", "group": link[2]}
    preview = await admin.post("/failures/act", fields)
    assert "100 failures of emails" in preview.text and preview.text.count("<li>") > 5
    await finished(admin, await confirmed(admin, "/failures/act", fields, rate="1000"))
    retried = {(await queue.get_job(job.id)).data["n"] % 3 for job in await queue.get_waiting()}  # type: ignore[union-attr]
    assert (len(await queue.get_waiting()), len(retried)) == (100, 1)


async def test_all_failures_of_a_queue_are_examined_as_an_operation(
    admin: Person,
    person_with: MakePerson,
    queue: Queue,
    valkey_url: str,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_failures, "MOST_EXAMINED", 200)
    await fail_all(queue, valkey_url, prefix, 600)
    page = await admin.text("/failures")
    assert "200 of 600 examined" in page and "Examine all" in page
    path = await admin.done("/failures/act", {"act": "examine", "queue": "emails"})
    page = await finished(admin, path)
    assert ("600 of 600" in page, re.findall(r"<b>(\d+)</b></td>", page)) == (True, ["200"] * 3)
    page = await admin.text("/failures")
    assert "600 of 600 examined" in page and "Examine all" not in page
    # Another process that knows nothing of the group retries it by what is stored with the operation.
    other = await person_with(allow_writes=True)
    monkeypatch.setattr(_failures, "MOST_EXAMINED", 0)
    monkeypatch.setattr(_failures, "AT_ONCE", 1)
    group = re.findall(r'name="group" value="([0-9a-f]+)"', await other.text(path))[2]
    fields = {"act": "retry", "queue": "emails", "group": group}
    assert (await other.post("/failures/act", {**fields, "group": "0" * 16})).status_code == 404
    fields["operation"] = path.rpartition("/")[2]
    preview = await other.post("/failures/act", fields)
    assert "200 failures of emails" in preview.text
    assert "<b>2.0 s</b> at 100 a second" in preview.text
    await finished(other, await confirmed(other, "/failures/act", fields))
    assert (await queue.get_job_counts()).waiting == 200


async def test_dead_letters_are_replayed(admin: Person, valkey_url: str, prefix: str) -> None:
    async def handle(_: Any) -> None:
        raise PermanentError("no such page")

    async with StreamQueue("jobs.a", redis=valkey_url, prefix=prefix) as stream:
        for n in range(5):
            await stream.add("visit", {"n": n})
        async with StreamWorker("jobs.a", handle, redis=valkey_url, prefix=prefix) as worker:
            await worker.run_until_idle()
        page = await admin.text("/queues/stream:jobs.a?state=failed")
        entry = re.search(r'name="id" value="([^"]+)"', page)
        assert entry is not None
        assert "no such page" in await admin.text(f"/queues/stream:jobs.a/job?id={entry[1]}")
        fields = {"act": "retry", "state": "failed", "id": entry[1]}
        await finished(admin, await confirmed(admin, "/queues/stream:jobs.a/selection", fields))
        assert (await stream.counts()).dead == 4
        fields = {"act": "remove", "state": "failed", "all": "1"}
        await finished(admin, await confirmed(admin, "/queues/stream:jobs.a/selection", fields))
        assert (await stream.counts()).dead == 0
        await admin.done("/queues/stream:jobs.a/act", {"act": "add", "name": "visit", "data": "{}"})


async def test_clean_drain_and_obliterate(admin: Person, queue: Queue, valkey_url: str, prefix: str) -> None:
    await fail_all(queue, valkey_url, prefix, 5)
    path = "/queues/emails/act"
    await finished(admin, await confirmed(admin, path, {"act": "clean", "state": "failed", "grace": "0"}))
    assert (await queue.get_job_counts()).failed == 0
    await queue.add_bulk([("send", {})] * 3)
    await finished(admin, await confirmed(admin, path, {"act": "drain"}))
    assert (await queue.get_job_counts()).waiting == 0
    await queue.add("send", {})
    asked = await admin.post(path, {"act": "obliterate"})
    assert "Write the name" in asked.text
    wrong = await admin.post(path, {"act": "obliterate", "confirmed": "1", "typed": "email"})
    assert wrong.status_code == 400
    await finished(admin, await confirmed(admin, path, {"act": "obliterate"}, typed="emails"))
    assert (await queue.get_job_counts()).total == 0


async def test_a_scheduler_is_run_edited_and_removed(admin: Person, queue: Queue) -> None:
    await queue.schedulers.upsert("nightly", cron="0 3 * * *", name="report", data={"n": 1})
    path, target = "/queues/emails/scheduler", {"id": "nightly"}
    assert "0 3 * * *" in await admin.text("/schedulers")
    await admin.done(path, {**target, "act": "run"})
    assert [job.name for job in await queue.get_waiting()] == ["report"]
    assert "0 3 * * *" in await admin.text(f"{path}?id=nightly")
    await admin.done(path, {**target, "act": "edit", "cron": "", "every": "90", "data": '{"n": 2}'})
    changed = await queue.schedulers.get("nightly")
    assert changed is not None and (changed.every, changed.data) == (90, {"n": 2})
    await confirmed(admin, path, {**target, "act": "remove"})
    assert await queue.schedulers.get("nightly") is None


async def test_an_operation_is_cancelled_with_a_partial_result(
    admin: Person, queue: Queue, valkey_url: str, prefix: str
) -> None:
    await fail_all(queue, valkey_url, prefix, 200)
    fields = {"act": "retry", "state": "failed", "all": "1"}
    path = await confirmed(admin, "/queues/emails/selection", fields, rate="20")
    await until_waiting(queue, 4)
    await admin.done(f"{path}/act", {"act": "cancel"})
    page = await finished(admin, path)
    assert "s-cancelled" in page
    counts = await queue.get_job_counts()
    assert counts.waiting + counts.failed == 200
    assert 0 < counts.waiting < 200
    assert "cancelled" in await admin.text("/operations")


@pytest.mark.timeout(120)
async def test_an_operation_goes_on_after_its_dashboard_was_killed_and_doubles_nothing(
    person_with: MakePerson, queue: Queue, valkey: Server, valkey_url: str, prefix: str
) -> None:
    await fail_all(queue, valkey_url, prefix, 300, errors=1)
    async with running_dashboard(valkey_url, prefix, "--allow-writes") as dashboard:
        async with httpx.AsyncClient(base_url=dashboard.url) as client:
            await client.get("/audit")
            fields = {"act": "retry", "state": "failed", "all": "1", "confirmed": "1", "rate": "100"}
            form = {**fields, "token": client.cookies["toril_csrf"]}
            headers = {"origin": dashboard.url, "sec-fetch-site": "same-origin"}
            reply = await client.post("/queues/emails/selection", data=form, headers=headers)
        path = reply.headers["location"]
        await until_waiting(queue, 50)
        await dashboard.kill()
    half = (await queue.get_job_counts()).waiting
    assert 50 <= half < 300
    # Some that were retried fail again meanwhile: they are younger than the operation.
    again = await fail_some_again(valkey_url, prefix, 10)
    other = await person_with(allow_writes=True)

    async def is_interrupted() -> bool:
        return "s-interrupted" in await other.text(path)

    await until(is_interrupted, "the operation is shown as interrupted")
    await other.done(f"{path}/act", {"act": "continue"})
    page = await finished(other, path)
    assert "s-done" in page
    assert {job.id for job in await queue.get_failed()} == again
    assert (await queue.get_job_counts()).waiting == 300 - len(again)


@pytest.mark.timeout(180)
async def test_a_group_that_is_retried_by_two_dashboards_has_no_job_twice(
    valkey_url: str, prefix: str
) -> None:
    outcome = await replay_and_kill(valkey_url, prefix, failures=601, rate=100)
    check(outcome, 601)
    assert (len(outcome.members), max(outcome.runs.values())) == (200, 1)


async def fail_some_again(valkey_url: str, prefix: str, count: int) -> set[str]:
    ids: set[str] = set()
    enough = asyncio.Event()

    async def handle(job: Job) -> None:
        ids.add(job.id)
        if len(ids) >= count:
            enough.set()
        raise PermanentError("again")

    async with Worker("emails", handle, redis=valkey_url, prefix=prefix, concurrency=1) as worker:
        await enough.wait()
        await worker.stop()
    return ids
