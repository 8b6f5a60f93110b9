"""Apps whose queues and tasks have codecs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.codecs import codec_tasks
from tests.integration.codecs.keys import KEY, OTHER_KEY
from tests.integration.codecs.test_encoded_jobs import SECRET, keyspace
from tests.servers import Server
from toril import App, Context, JobFailed, Queue, sync
from toril.app import chain, parallel_then
from toril.codecs import AesGcm, Codecs, Zstd
from toril.errors import InvalidOption
from toril.integrations.job_updates import JobUpdates
from toril.integrations.outbox.rows import row_of

CODECS = Codecs([Zstd(), AesGcm({"a": KEY})])
OTHER_CODECS = Codecs([AesGcm({"b": OTHER_KEY})])


@dataclass
class Receipt:
    to: str
    words: int


@pytest.fixture
async def app(valkey: Server, prefix: str) -> AsyncIterator[App]:
    async with App(redis=valkey.url, prefix=prefix) as made:
        yield made


async def test_a_queue_with_codecs_and_a_task_with_its_own(app: App, valkey: Server, prefix: str) -> None:
    app.queue("emails", codecs=CODECS)

    @app.task(queue="emails")
    async def send(ctx: Context, to: str) -> Receipt:
        await ctx.progress(50)
        return Receipt(to, 1)

    @app.task(queue="open", codecs=OTHER_CODECS)
    async def keep(text: str) -> str:
        return text

    @app.task(queue="open")
    def show(text: str) -> str:
        return text

    async with app.worker():
        job = await send.enqueue(SECRET)
        kept = await keep.enqueue(SECRET)
        shown = await show.enqueue("public")
        assert await job.result(20) == Receipt(SECRET, 1)
        assert await kept.result(20) == SECRET
        assert await shown.result(20) == "public"
        await job.refresh()
        assert job.progress == 50
        many = await send.enqueue_many([send.bind(SECRET), send.bind("b")])
        assert [await one.result(20) for one in many] == [Receipt(SECRET, 1), Receipt("b", 1)]
    assert SECRET.encode() not in await keyspace(valkey, prefix)
    assert kept.as_json()["data"]["_toril"]["steps"] == [{"codec": "aes-gcm", "key": "b"}]
    assert shown.as_json()["data"] == {"text": "public"}


async def test_compositions_over_queues_with_different_codecs(app: App, valkey: Server, prefix: str) -> None:
    app.queue("first", codecs=CODECS)
    app.queue("second", codecs=OTHER_CODECS)

    @app.task(queue="first")
    async def start(text: str) -> str:
        return f"{text}!"

    @app.task(queue="second")
    async def middle(text: str) -> str:
        return f"{text}?"

    @app.task(queue="plain")
    async def join(texts: list[str]) -> int:
        return sum(len(one) for one in texts)

    @app.task(queue="first")
    async def count(texts: list[int]) -> int:
        return sum(texts)

    @app.task(queue="plain")
    async def length(text: str) -> int:
        return len(text)

    async with app.worker():
        joined = await parallel_then([start.bind(SECRET), middle.bind(SECRET)], join).enqueue()
        assert await joined.result(20) == 2 * len(SECRET) + 2
        chained = await chain(start.bind(SECRET), middle).enqueue()
        assert await chained.result(20) == f"{SECRET}!?"
        counted = await parallel_then([length.bind("abc"), length.bind("d")], count).enqueue()
        assert await counted.result(20) == 4, "children of a plain queue are read by an encrypted one"
    assert SECRET.encode() not in await keyspace(valkey, prefix)


async def test_a_declared_schedule_is_not_changed_by_a_restart(app: App) -> None:
    app.queue("emails", codecs=CODECS)

    @app.task(queue="emails")
    async def send(to: str) -> None:
        """Is not run."""

    send.bind(SECRET).schedule(cron="0 3 1 1 *", tz="UTC")
    stored: list[bytes] = []
    for _ in range(2):
        async with app.worker():
            queue: Any = app.get_queue("emails")
            (found,) = await queue.schedulers.list()
            (job,) = await queue.get_jobs("delayed")
            stored.append(job.record.raw_data)
    assert found.data == {"to": SECRET}
    assert stored[0] == stored[1], "it was not encrypted and written again"


async def test_an_app_without_the_codecs_says_what_is_missing(app: App, valkey: Server, prefix: str) -> None:
    @app.task(queue="emails", attempts=3)
    async def send(to: str) -> str:
        return to

    async with (
        Queue("emails", redis=valkey.url, prefix=prefix, codecs=CODECS) as queue,
        app.worker(),
    ):
        job = await queue.add("send", {"to": SECRET})
        with pytest.raises(JobFailed, match="it is encoded, and the queue has no codecs here"):
            await job.wait_until_finished(20)
        await job.refresh()
        assert job.data == {"to": SECRET}


async def test_tasks_of_list_and_stream_queues(app: App, valkey: Server, prefix: str) -> None:
    for kind in ("list", "stream"):
        app.queue(f"{kind}:emails", codecs=CODECS, keep_results=60)

        @app.task(queue=f"{kind}:emails", name=f"send-{kind}")
        async def send(to: str) -> str:
            return to

        async with app.worker([f"{kind}:emails"]):
            job = await send.enqueue(SECRET)
            assert await job.result(20) == SECRET
    assert SECRET.encode() not in await keyspace(valkey, prefix)


async def test_tasks_in_processes(valkey: Server, prefix: str) -> None:
    app = codec_tasks.app
    with app.configured(redis=valkey.url, prefix=prefix):
        async with app, app.worker():
            job = await codec_tasks.shout.enqueue(SECRET)
            assert await job.result(30) == SECRET.upper()
            assert await job.get_logs() == ["shouted"]
    assert SECRET.encode() not in await keyspace(valkey, prefix)


def test_a_blocking_app(valkey: Server, prefix: str) -> None:
    blocking = sync.App(redis=valkey.url, prefix=prefix)
    blocking.queue("emails", codecs=CODECS)

    @blocking.task(queue="emails")
    def send(to: str) -> str:
        return to

    with blocking, blocking.worker():
        assert send.enqueue(SECRET).result(20) == SECRET


async def test_updates_for_web_clients_are_decoded(app: App) -> None:
    app.queue("emails", codecs=CODECS)

    @app.task(queue="emails")
    async def send(ctx: Context, to: str) -> str:
        await ctx.progress({"to": to})
        return to

    updates = JobUpdates(app)
    job = await send.enqueue(SECRET)
    async with app.worker():
        seen = [update async for update in updates.follow("emails", job.id)]
    assert (seen[-1].type, seen[-1].value) == ("completed", SECRET)
    assert [one.value for one in seen[:-1]] in ([], [{"to": SECRET}])


def test_a_row_of_the_outbox_has_the_encoded_data() -> None:
    app = App()
    app.queue("emails", codecs=CODECS)

    @app.task(queue="emails")
    async def send(to: str) -> None:
        """Is not run."""

    row = row_of(send.bind(SECRET))
    assert SECRET not in row.data
    assert CODECS.decode(row.data.encode(), "data") == b'{"to":"%s"}' % SECRET.encode()


def test_what_is_not_codecs_is_refused_where_it_is_said() -> None:
    app = App()
    with pytest.raises(InvalidOption, match="codecs"):
        app.queue("emails", codecs=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="codecs"):

        @app.task(codecs=[Zstd()])  # type: ignore[call-overload]
        async def send() -> None:
            """Is not run."""
