"""Posting: a command without a task, answered in the turn in which its reply comes, by the same rules as `run`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.faults.proxy import FAULTS, Kind, Proxy
from tests.integration.store.faces import QUICK, add_to, get, say, words
from tests.servers import Server, ValkeyCluster
from toril.commands._command import Command, Replay
from toril.contract.errors import Closed, ReplyLost, ScriptFailed, StoreError, StoreUnavailable, TorilError
from toril.store import AsyncStore, ConnectionPolicy

POLICY = ConnectionPolicy(command_timeout=0.25, reconnect_delay=0.005, max_reconnect_delay=0.02)


@pytest.fixture
async def store(valkey: Server) -> AsyncIterator[AsyncStore]:
    async with AsyncStore(valkey.url, policy=QUICK) as store:
        await store.connect()
        yield store


async def posted(store: AsyncStore, command: Command[Any]) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert store.post(command, answered.set_result)
    return await asyncio.wait_for(answered, 10)


async def test_the_answer_is_the_value_or_the_error(store: AsyncStore, prefix: str):
    assert await posted(store, say(prefix, "hello")) == b"hello"
    assert await posted(store, add_to(f"{prefix}:a")) == 1
    await store.run(words("RPUSH", f"{prefix}:list", "a"))
    assert isinstance(await posted(store, add_to(f"{prefix}:list")), ScriptFailed)
    assert isinstance(await posted(store, words("NONSENSE")), StoreError)


async def test_a_flushed_script_is_sent_as_text(store: AsyncStore, prefix: str):
    for expected in (1, 2, 3):
        await store.run(words("SCRIPT", "FLUSH"))
        assert await posted(store, add_to(f"{prefix}:a")) == expected


async def test_answers_keep_their_order_among_calls_of_both_kinds(store: AsyncStore, prefix: str):
    answers: list[Any] = []
    await store.run(say(prefix, "known"))
    calls = []
    for number in range(50):
        assert store.post(say(prefix, f"post {number}"), answers.append)
        calls.append(asyncio.create_task(store.run(say(prefix, f"run {number}"))))
    assert await asyncio.gather(*calls) == [f"run {number}".encode() for number in range(50)]
    assert answers == [f"post {number}".encode() for number in range(50)]


async def test_an_answer_may_post_the_next_command(store: AsyncStore, prefix: str):
    done = asyncio.get_running_loop().create_future()
    said: list[Any] = []

    def answer(word: Any) -> None:
        said.append(word)
        if len(said) == 20:
            done.set_result(None)
        else:
            assert store.post(say(prefix, str(len(said))), answer)

    await store.run(say(prefix, "known"))
    store.post(say(prefix, "0"), answer)
    await asyncio.wait_for(done, 10)
    assert said == [str(number).encode() for number in range(20)]


async def test_a_reply_that_cannot_be_read_harms_nobody_else(store: AsyncStore, prefix: str):
    strange: Command[Any] = Command(("PING",), lambda reply: reply["no such field"], replay=Replay.SAFE)
    (before, unread, after) = await asyncio.gather(
        posted(store, say(prefix, "a")), posted(store, strange), posted(store, say(prefix, "b"))
    )
    assert (before, after) == (b"a", b"b")
    assert isinstance(unread, TorilError)
    with pytest.raises(TorilError, match="PING"):
        await store.run(strange)


async def test_it_says_no_where_it_cannot_be(valkey: Server, cluster: ValkeyCluster, prefix: str):
    def never(_: Any) -> None:
        raise AssertionError("nothing was sent")

    async with AsyncStore(valkey.url) as store:
        assert store.post(say(prefix, "a"), never) is False  # Not connected yet.
        await store.connect()
    assert store.post(say(prefix, "a"), never) is False  # Closed.
    async with AsyncStore(cluster.url) as store:
        await store.connect()
        assert store.post(say(prefix, "a"), never) is False


async def test_it_says_no_while_the_server_does_not_read(start_valkey: Callable[..., Server]):
    server = start_valkey()
    async with AsyncStore(server.url, policy=ConnectionPolicy(command_timeout=20)) as store:
        await store.connect()
        server.freeze()
        answers: list[Any] = []
        large = say("a", "x" * 1_000_000)
        posts = 0
        while store.post(large, answers.append):
            posts += 1
            assert posts < 20
            await asyncio.sleep(0)
        server.thaw()
        while len(answers) < posts:
            await asyncio.sleep(0.01)
        assert {len(answer) for answer in answers} == {1_000_000}


async def test_closing_answers_what_is_on_its_way(start_valkey: Callable[..., Server]):
    server = start_valkey()
    store = AsyncStore(server.url)
    await store.connect()
    server.freeze()
    answers: list[Any] = []
    for command in (add_to("a"), get("a"), say("a", "x")):
        assert store.post(command, answers.append)
    await asyncio.wait_for(store.close(), 5)
    assert sorted(type(answer) for answer in answers if isinstance(answer, ReplyLost)) == [ReplyLost]
    assert all(isinstance(answer, (Closed, StoreUnavailable)) for answer in answers)
    assert len(answers) == 3
    server.thaw()


class TestALostReply:
    @pytest.fixture
    def proxy(self, valkey: Server) -> Iterator[Proxy]:
        with Proxy(valkey.port) as proxy:
            yield proxy

    @pytest.mark.parametrize("fault", FAULTS)
    async def test_makes_nothing_run_twice_that_must_not(self, proxy: Proxy, prefix: str, fault: Kind):
        async with AsyncStore(proxy.url, policy=POLICY) as store:
            await store.run(add_to(f"{prefix}:other"))
            proxy.arm(fault, f"{prefix}:a".encode())
            assert isinstance(await posted(store, add_to(f"{prefix}:a")), ReplyLost)
            count = await store.run(get(f"{prefix}:a"))
            assert count == (None if fault == "cut before" else b"1")

    @pytest.mark.parametrize("fault", FAULTS)
    async def test_of_a_call_that_may_run_twice_is_asked_for_again(
        self, proxy: Proxy, prefix: str, fault: Kind
    ):
        async with AsyncStore(proxy.url, policy=POLICY) as store:
            await store.run(say(prefix, "known"))
            proxy.arm(fault, b"again and again")
            assert await posted(store, say(prefix, "again and again")) == b"again and again"
