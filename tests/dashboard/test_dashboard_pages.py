"""Pages: what they show of queues of all kinds, under any path, with anything in them."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.dashboard.conftest import MakePerson, Person
from tests.dashboard.hostile_markup import QUEUE, plant_markup
from tests.hostile_corpus import MEGABYTE, plant
from tests.servers import Server
from toril import (
    FlowNode,
    FlowProducer,
    GroupLimits,
    Job,
    JobOptions,
    ListQueue,
    NewJob,
    Queue,
    RateLimit,
    StreamQueue,
    Worker,
)
from toril.codecs import AesGcm, Codecs
from toril.commands.pages import WINDOW_JOBS
from toril.dashboard import ServerOptions
from toril.dashboard._texts import name_of_url_part, pretty_json, url_part

PATHS = (
    "/",
    "/failures",
    "/schedulers",
    "/workers",
    "/flows",
    "/history",
    "/health",
    "/operations",
    "/audit",
)
LINK = re.compile(r'(?:href|action|src|hx-sse:connect)="([^"]*)"')


async def test_every_page_answers_without_a_queue(viewer: Person) -> None:
    for path in PATHS:
        assert "</html>" in await viewer.text(path), path
    assert "There is no queue yet" in await viewer.text("/")


async def test_queues_of_three_kinds_are_listed_with_their_counts(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    async with (
        Queue("emails", redis=valkey_url, prefix=prefix) as queue,
        ListQueue("jobs.a", redis=valkey_url, prefix=prefix) as jobs,
        StreamQueue("jobs.b", redis=valkey_url, prefix=prefix) as stream,
    ):
        await queue.add_bulk([("send", {"n": n}) for n in range(1234)])
        await queue.add("later", {}, delay=60)
        await jobs.add("draw", {})
        await stream.add("draw", {"n": 9_223_372_036_854_775_808})
        page = await viewer.text("/")
        for words in ("emails", "1,234", "list:jobs.a", "stream:jobs.b"):
            assert words in page
        assert "9223372036854775808" in await viewer.text("/queues/stream:jobs.b")
        assert "draw" in await viewer.text("/queues/list:jobs.a?state=waiting")
        assert "later" in await viewer.text("/queues/emails?state=delayed")


async def test_a_paused_queue_lacks_no_worker(
    viewer: Person, valkey: Server, valkey_url: str, prefix: str
) -> None:
    for name in ("emails", "reports"):
        async with Queue(name, redis=valkey_url, prefix=prefix) as queue:
            job = await queue.add("send", {})
            with valkey.client() as client:
                client.hset(f"{prefix}:{name}:{job.id}", "timestamp", "1700000000000")
            if name == "emails":
                await queue.pause()
    page = await viewer.text("/")
    assert (page.count("! no worker"), page.count("❚❚ paused")) == (1, 1)


async def test_jobs_are_paged_without_a_gap(viewer: Person, valkey_url: str, prefix: str) -> None:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        jobs = await queue.add_bulk([("send", {"n": n}) for n in range(120)])
    seen: list[str] = []
    path = "/queues/emails?state=waiting&order=oldest"
    while path:
        page = await viewer.text(path)
        seen += re.findall(r'<tr data-row data-key="([^"]+)"', page)
        found = re.search(r'rel="next" href="([^"]+)"', page)
        path = html.unescape(found[1]) if found else ""
    assert seen == [job.id for job in jobs]


async def test_the_search_finds_a_job_by_its_data_also_a_large_one(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add_bulk([("send", {"to": f"user{n}@example.com"}) for n in range(500)])
        large = await queue.add("blob", {"text": "x" * (2 * MEGABYTE) + "needle"})
    page = await viewer.text("/queues/emails?state=waiting&q=USER499%40")
    assert page.count("data-row") == 1
    assert "1 found among 501 of 501" in page
    page = await viewer.text("/queues/emails?state=waiting&q=needle")
    assert large.id in page
    assert len(page) < 20_000
    assert "Nothing matches" in await viewer.text("/queues/emails?state=waiting&q=nobody")
    assert (await viewer.get("/queues/emails?state=waiting&since=yesterday")).status_code == 400
    assert (await viewer.get("/queues/emails?state=nowhere")).status_code == 400
    assert (await viewer.get("/queues/emails?state=waiting&after=x")).status_code == 400


@pytest.mark.parametrize("kind", [ListQueue, StreamQueue])
async def test_envelopes_are_searched_beyond_the_page(
    viewer: Person, valkey_url: str, prefix: str, kind: type[ListQueue | StreamQueue]
) -> None:
    async with kind("jobs.a", redis=valkey_url, prefix=prefix) as queue:
        for n in range(400):
            await queue.add("visit", {"page": f"p{n}", "text": "x" * (5000 if n == 7 else 5) + f" Needle{n}"})
    path = f"/queues/{'list' if kind is ListQueue else 'stream'}:jobs.a?state=waiting"
    page = await viewer.text(f"{path}&q=needle7%22")
    assert (page.count("data-row"), "1 found among 400 of 400" in page) == (1, True)
    page = await viewer.text(f"{path}&q=NEEDLE&limit=25")
    assert page.count("data-row") == 25
    link = re.search(r'href="([^"]+)">search on', page)
    assert link is not None
    again = await viewer.text(html.unescape(link[1]))
    assert again.count("data-row") == 25
    assert kind is StreamQueue or "found among 50 of 400 examined" in again
    assert not set(re.findall('data-key="([^"]+)"', page)) & set(re.findall('data-key="([^"]+)"', again))
    assert "Nothing matches" in await viewer.text(f"{path}&q=needle&name=draw")


async def test_a_search_ends_when_its_request_is_closed(viewer: Person, valkey_url: str, prefix: str) -> None:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add_bulk([("send", {"n": n}) for n in range(3 * WINDOW_JOBS)])
    path = "/queues/emails?state=waiting&q=nobody"
    assert f"{3 * WINDOW_JOBS} of {3 * WINDOW_JOBS} examined" in await viewer.text(path)

    sent: list[Any] = []

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/queues/emails", "query_string": path.partition("?")[2].encode(),
        "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        "scheme": "http", "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    await viewer.app(scope, receive, send)
    page = b"".join(one.get("body", b"") for one in sent).decode()
    assert f"0 found among {WINDOW_JOBS} of {3 * WINDOW_JOBS} examined" in page


async def test_a_job_is_shown_with_data_result_log_and_code(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    async def handle(job: Job) -> dict[str, int]:
        await job.log("halfway")
        return {"sent": 9_007_199_254_740_993}

    async with (
        Queue("emails", redis=valkey_url, prefix=prefix) as queue,
        Worker("emails", handle, redis=valkey_url, prefix=prefix) as worker,
    ):
        job = await queue.add("send", {"to": "a@b.c"})
        await worker.run_until_idle()
        page = await viewer.text(f"/queues/emails/job?id={job.id}")
    for words in (
        "a@b.c",
        "9007199254740993",
        "halfway",
        "completed",
        "await queue.add(",
        "toril add emails",
    ):
        assert words in html.unescape(page), words
    assert (await viewer.get("/queues/emails/job?id=nobody")).status_code == 404


async def test_encoded_payloads_are_shown_as_such(viewer: Person, valkey_url: str, prefix: str) -> None:
    codecs = Codecs([AesGcm({"2026": bytes(32)})])

    async def handle(job: Job) -> dict[str, str]:
        await job.update_progress(50)
        return {"to": job.data["to"]}

    async with (
        Queue("emails", redis=valkey_url, prefix=prefix, codecs=codecs) as queue,
        Worker("emails", handle, redis=valkey_url, prefix=prefix, codecs=codecs) as worker,
    ):
        job = await queue.add("send", {"to": "a@b.c"})
        await worker.run_until_idle()
    page = html.unescape(await viewer.text(f"/queues/emails/job?id={job.id}"))
    rows = html.unescape(await viewer.text("/queues/emails?state=completed"))
    for title in ("data", "result", "progress"):
        assert f"{title}: encoded (aes-gcm key 2026)" in page
    assert "encoded (aes-gcm key 2026)" in rows
    assert "a@b.c" not in page + rows


async def test_groups_are_shown_with_their_counts_and_limits(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    async with Queue("mails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add("plain", {})
        assert "No job has a group" in await viewer.text("/queues/mails/groups")
        await queue.set_group_limits("tenant-7", GroupLimits(concurrency=3, rate_limit=RateLimit(10, 2.0)))
        await queue.set_group_limits(None, GroupLimits(max_size=5000))
        await queue.set_group_weight("tenant-8", 4)
        await queue.pause_group("<b>tenant-9")
        for group, count in (("tenant-7", 7), ("tenant-8", 1200)):
            await queue.add_bulk([NewJob("send", {}, JobOptions(group=group)) for _ in range(count)])
    page = await viewer.text("/queues/mails/groups")
    cells = [re.findall(r">([^<>]+)</td>", row) for row in page.split("<tr data-row")[1:]]
    assert cells == [
        ["1,200", "0", "0", "0", "4", "–"],
        ["7", "0", "0", "0", "1", "3 at once, 10 in 2.0 s"],
        ["0", "0", "0", "0", "1", "–"],
    ]
    assert "&lt;b&gt;tenant-9" in page and "❚❚ paused" in page
    assert "5,000 waiting at most" in page
    assert "/queues/mails/groups" in await viewer.text("/queues/mails?state=prioritized")
    assert (await viewer.get("/queues/nobody/groups")).status_code == 404


async def test_a_flow_is_a_graph(viewer: Person, valkey_url: str, prefix: str) -> None:
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        children = [FlowNode(f"child-{n}", queue="b", data={}) for n in range(3)]
        root = await flows.add(FlowNode("parent", queue="a", data={}, children=children))
    assert root.job.id in await viewer.text("/flows")
    page = await viewer.text(f"/flows?root=a/{root.job.id}")
    assert page.count('<path class="edge"') == 3
    assert "child-2" in page
    job = await viewer.text(f"/queues/a/job?id={root.job.id}")
    assert job.count('<path class="edge"') == 3 and "node state-waiting-children here" in job
    (child,) = re.findall(r'href="(/queues/b/job[^"]*)"[^>]*>(?:(?!</a>).)*child-1', job)
    page = await viewer.text(html.unescape(child))
    assert page.count('<path class="edge"') == 1 and ">parent<" in page


async def test_the_queue_of_a_flow_may_have_slashes_in_its_name(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        root = await flows.add(
            FlowNode("parent", queue="a/b", data={}, children=[FlowNode("child", queue="a")])
        )
    page = await viewer.text(f"/flows?root=a/b/{root.job.id}")
    assert page.count('<path class="edge"') == 1
    assert (await viewer.get(f"/flows?root=a/c/{root.job.id}")).status_code == 404
    assert (await viewer.get("/flows?root=nobody/1")).status_code == 404


async def test_a_wide_flow_says_how_many_children_are_not_shown(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    async with FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        children = [FlowNode("child", queue="b", data={}) for _ in range(40)]
        root = await flows.add(FlowNode("parent", queue="a", data={}, children=children))
    page = await viewer.text(f"/flows?root=a/{root.job.id}")
    assert page.count('<path class="edge"') == 30
    assert "10 more children are not in the picture" in page and "+10 more" in page


async def test_a_worker_is_shown_with_the_jobs_that_it_runs(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    started = asyncio.Semaphore(0)

    async def handle(_: Job) -> None:
        started.release()
        await asyncio.Event().wait()

    async with (
        Queue("images", redis=valkey_url, prefix=prefix) as queue,
        Worker("images", handle, redis=valkey_url, prefix=prefix, concurrency=5) as worker,
    ):
        jobs = await queue.add_bulk([("resize", {"n": n}) for n in range(5)])
        for _ in jobs:
            await started.acquire()
        page = await viewer.text("/workers")
        shown = [job.id for job in jobs if f"/queues/images/job?id={job.id}" in page]
        assert len(shown) == 3 and "and 2 more" in page and "5 <span" in page
        await worker.stop(timeout=0)


async def test_a_queue_is_shown_with_its_rate_and_its_oldest_job(
    viewer: Person, valkey_url: str, prefix: str
) -> None:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add_bulk([("send", {})] * 3)
        await viewer.text("/queues/emails?state=waiting")
        (samples,) = viewer.app.state.dashboard.sources.all[0].rates._samples.values()
        samples.at -= 30  # the first reading was half a minute ago
        async with Worker("emails", _complete, redis=valkey_url, prefix=prefix) as worker:
            await worker.run_until_idle()
        page = await viewer.text("/queues/emails?state=completed")
    assert re.search(r'title="the last 3\d seconds, from samples">[56](\.\d)?<', page), page
    assert "<dt>Oldest wait</dt><dd>–</dd>" in page


async def _complete(_: Job) -> None: ...


async def test_redacted_values_are_neither_shown_nor_found_nor_downloaded(
    person_with: MakePerson, valkey_url: str, prefix: str
) -> None:
    def redact(_queue: str, field: str, value: Any) -> Any:
        return {**value, "password": "***"} if field == "data" and isinstance(value, dict) else value

    person = await person_with(redact=redact)
    async with Queue("users", redis=valkey_url, prefix=prefix) as queue:
        job = await queue.add("create", {"name": "anna", "password": "geheim-4711"})
    paths = [
        "/queues/users?state=waiting",
        "/queues/users?state=waiting&q=geheim-47",
        f"/queues/users/job?id={job.id}",
        f"/queues/users/job/value?id={job.id}&field=data",
        f"/queues/users/new?like={job.id}",
    ]
    for path in paths:
        assert "geheim-4711" not in await person.text(path), path
    assert "Nothing matches" in await person.text("/queues/users?state=waiting&q=geheim")
    assert job.id in await person.text("/queues/users?state=waiting&q=anna")


async def test_all_links_are_below_the_path_of_the_mount(
    person_with: MakePerson, valkey_url: str, prefix: str
) -> None:
    person = await person_with(base="/tools/queues", allow_writes=True)
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        job = await queue.add("send", {})
    for path in (*PATHS, "/queues/emails", f"/queues/emails/job?id={job.id}", "/queues/emails/settings"):
        page = await person.text(f"/tools/queues{path}")
        for link in LINK.findall(page):
            assert link.startswith(("/tools/queues/", "#")), (path, link)


async def test_several_servers_are_one_page(
    redis7_url: str, valkey_url: str, person_with: MakePerson, prefix: str
) -> None:
    servers = [
        ServerOptions(redis=valkey_url, name="one", prefix=prefix),
        ServerOptions(redis=redis7_url, name="two", prefix=prefix),
        ServerOptions(redis="redis://127.0.0.1:1", name="away", prefix=prefix),
    ]
    person = await person_with(servers=servers)
    for url, count in ((valkey_url, 1), (redis7_url, 2)):
        async with Queue("emails", redis=url, prefix=prefix) as queue:
            await queue.add_bulk([("send", {})] * count)
    page = await person.text("/")
    for words in ("one::emails", "two::emails", "away"):
        assert words in page
    assert "1–2 of 2" in await person.text("/queues/two::emails")


async def test_a_server_that_is_away_is_said(person_with: MakePerson, prefix: str) -> None:
    person = await person_with(servers=[ServerOptions(redis="redis://127.0.0.1:1", prefix=prefix)])
    page = await person.text("/", status=503)
    assert "does not answer" in page
    assert (await person.get("/places")).status_code == 503


@pytest.mark.timeout(180)
async def test_the_hostile_corpus_breaks_no_page_and_becomes_no_markup(
    person_with: MakePerson, valkey: Server, prefix: str
) -> None:
    person = await person_with(allow_writes=True)
    with valkey.client() as client:
        planted = plant(client, prefix)
    assert await crawled(person, {*PATHS, f"/queues/{planted.queue}?state=waiting"}, most=400) > 150


@pytest.mark.timeout(180)
async def test_markup_sizes_and_depths_break_no_page_and_no_act(
    person_with: MakePerson, valkey: Server, prefix: str
) -> None:
    person = await person_with(allow_writes=True)
    with valkey.client() as client:
        planted = plant_markup(client, prefix)
    # Acts, so that operations and the audit have these names, too.
    queues = [link for _, link in (await person.get("/places")).json() if link != f"/queues/{QUEUE}"]
    assert len(queues) == len(planted.queues)
    for queue in queues:
        reply = await person.post(f"{queue}/act", {"act": "pause"})
        assert_is_harmless(reply.text, queue)
        if "~5Cx00" in queue:
            assert reply.status_code == 400  # a name that no client of ours may have
            continue
        assert reply.status_code == 303, reply.text
        (job,) = re.findall(r'name="id" value="([^"]+)"', await person.text(f"{queue}?state=failed"))
        fields = {"act": "retry", "state": "failed", "id": job, "confirmed": "1"}
        place = await person.done(f"{queue}/selection", fields)
        assert_is_harmless(await person.text(place), place)
    states = ("waiting", "active", "failed", "delayed", "completed", "waiting-children")
    links = {f"/queues/{QUEUE}?state={state}&limit=200" for state in states}
    links |= {f"/queues/{QUEUE}/job?id={job_id}" for job_id in ("large", "deep", "surrogate", "numbers-4")}
    links |= {f"/queues/{QUEUE}?state=failed&q={quote(text)}" for text in planted.ids}
    links |= {f"/flows?root={quote(f'{QUEUE}/{text}')}" for text in planted.ids}
    assert await crawled(person, {*PATHS, *links}, most=250) > 150
    page = await person.text(f"/queues/{QUEUE}/job?id={planted.numbers_id}")
    assert "9223372036854775808" in page  # exact, not rounded


async def crawled(person: Person, links: set[str], *, most: int) -> int:
    """Follows the links of pages; returns how many pages were seen, all of them harmless."""
    visited: set[str] = set()
    while links - visited and len(visited) < most:
        path = min(links - visited)
        visited.add(path)
        reply = await person.get(path)
        assert reply.status_code in (200, 400, 404, 502), (path, reply.status_code)
        page = reply.text
        if not reply.headers["content-type"].startswith("text/html"):
            # A raw value: a browser saves it, whatever it is.
            assert reply.headers["content-type"].startswith("text/plain"), path
            assert reply.headers["x-content-type-options"] == "nosniff", path
            assert reply.headers.get("content-disposition", "attachment").startswith("attachment"), path
            continue
        assert_is_harmless(page, path)
        for link in re.findall(r'href="([^"]*)"', page):
            address = html.unescape(link)
            if address.startswith("/") and not address.startswith(("/static", "/live", "//")):
                assert ".." not in urlsplit(address).path.split("/"), address
                links.add(address)
    return len(visited)


def assert_is_harmless(page: str, path: str) -> None:
    """Nothing of the corpus is an element, an attribute or an expression."""
    for markup in (
        "<script>alert",
        'onmouseover="alert',
        "<FORGED",
        ">49<",
        "<img",
        "<svg onload",
        "}49{",
        'href="javascript:',
    ):
        assert markup not in page, (path, markup)
    assert "\x00" not in page and "\x1b" not in page and "\u202e" not in page, path


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "a%2Fb", "a~2Fb", "ü ", "{a}", "list:a", "a?b#c", "\ud800", ""]
)
def test_a_name_in_a_path_is_read_back(name: str) -> None:
    part = url_part(name)
    assert name_of_url_part(part) == name
    assert part not in (".", "..")
    assert not set(part) & set("/?#%")


def test_json_keeps_its_digits_and_deep_nesting_is_text() -> None:
    text, is_json = pretty_json(b'{"n":9223372036854775808,"d":1.10,"e":[]}')
    assert (text, is_json) == ('{\n  "n": 9223372036854775808,\n  "d": 1.10,\n  "e": []\n}', True)
    deep = b"[" * 10_000 + b"]" * 10_000
    assert pretty_json(deep) == (deep.decode(), False)
