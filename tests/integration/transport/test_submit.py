"""`submit`: a command without a task, answered in the turn in which its reply comes, by the same rules as `run`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.faults.proxy import FAULTS, Kind, Proxy
from tests.integration.transport.transport_adapters import QUICK, add_to, echo, get, raw_request
from tests.servers import Server, ValkeyCluster
from toril.commands.command import Command, Replay
from toril.errors import Closed, RedisError, RedisUnavailable, ReplyLost, ScriptFailed, TorilError
from toril.transport import AsyncTransport, ConnectionPolicy

POLICY = ConnectionPolicy(command_timeout=0.25, reconnect_delay=0.005, max_reconnect_delay=0.02)


@pytest.fixture
async def transport(valkey: Server) -> AsyncIterator[AsyncTransport]:
    async with AsyncTransport(valkey.url, policy=QUICK) as transport:
        await transport.connect()
        yield transport


async def submitted(transport: AsyncTransport, command: Command[Any]) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    transport.submit(command, answered.set_result)
    return await asyncio.wait_for(answered, 10)


async def test_the_answer_is_the_value_or_the_error(transport: AsyncTransport, prefix: str) -> None:
    assert await submitted(transport, echo(prefix, "hello")) == b"hello"
    assert await submitted(transport, add_to(f"{prefix}:a")) == 1
    await transport.run(raw_request("RPUSH", f"{prefix}:list", "a"))
    assert isinstance(await submitted(transport, add_to(f"{prefix}:list")), ScriptFailed)
    assert isinstance(await submitted(transport, raw_request("NONSENSE")), RedisError)


async def test_a_flushed_script_is_sent_as_text(transport: AsyncTransport, prefix: str) -> None:
    for expected in (1, 2, 3):
        await transport.run(raw_request("SCRIPT", "FLUSH"))
        assert await submitted(transport, add_to(f"{prefix}:a")) == expected


async def test_answers_keep_their_order_among_calls_of_both_kinds(
    transport: AsyncTransport, prefix: str
) -> None:
    answers: list[Any] = []
    await transport.run(echo(prefix, "known"))
    calls = []
    for number in range(50):
        transport.submit(echo(prefix, f"submit {number}"), answers.append)
        calls.append(asyncio.create_task(transport.run(echo(prefix, f"run {number}"))))
    assert await asyncio.gather(*calls) == [f"run {number}".encode() for number in range(50)]
    assert answers == [f"submit {number}".encode() for number in range(50)]


async def test_an_answer_may_submit_the_next_command(transport: AsyncTransport, prefix: str) -> None:
    done = asyncio.get_running_loop().create_future()
    said: list[Any] = []

    def answer(word: Any) -> None:
        said.append(word)
        if len(said) == 20:
            done.set_result(None)
        else:
            transport.submit(echo(prefix, str(len(said))), answer)

    await transport.run(echo(prefix, "known"))
    transport.submit(echo(prefix, "0"), answer)
    await asyncio.wait_for(done, 10)
    assert said == [str(number).encode() for number in range(20)]


async def test_a_reply_that_cannot_be_read_harms_nobody_else(transport: AsyncTransport, prefix: str) -> None:
    strange: Command[Any] = Command(("PING",), lambda reply: reply["no such field"], replay=Replay.SAFE)
    (before, unread, after) = await asyncio.gather(
        submitted(transport, echo(prefix, "a")),
        submitted(transport, strange),
        submitted(transport, echo(prefix, "b")),
    )
    assert (before, after) == (b"a", b"b")
    assert isinstance(unread, TorilError)
    with pytest.raises(TorilError, match="PING"):
        await transport.run(strange)


async def test_it_works_before_the_first_connection_on_a_cluster_and_after_the_end(
    valkey: Server, cluster: ValkeyCluster, prefix: str
) -> None:
    for url in (valkey.url, cluster.url):
        async with AsyncTransport(url) as transport:
            assert await submitted(transport, echo(prefix, "not connected")) == b"not connected"
            assert await submitted(transport, echo(prefix, "connected")) == b"connected"
        assert isinstance(await submitted(transport, echo(prefix, "closed")), Closed)


async def test_it_starts_no_task_on_an_open_connection(
    valkey: Server, cluster: ValkeyCluster, prefix: str
) -> None:
    for url in (valkey.url, cluster.url):
        async with AsyncTransport(url) as transport:
            await transport.run(echo(prefix, "known"))
            before = asyncio.all_tasks()
            answers: list[Any] = []
            transport.submit(echo(prefix, "a"), answers.append)
            while not answers:
                assert asyncio.all_tasks() == before
                await asyncio.sleep(0)
            assert answers == [b"a"]


async def test_another_event_loop_is_refused(transport: AsyncTransport, prefix: str) -> None:
    async def submit() -> None:
        transport.submit(echo(prefix, "a"), lambda _: None)

    with pytest.raises(TorilError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, submit())


async def test_words_that_cannot_be_sent_raise_at_once(valkey: Server, prefix: str) -> None:
    answers: list[Any] = []
    async with AsyncTransport(valkey.url) as transport:
        for _ in ("before the first connection", "on an open connection"):
            with pytest.raises(UnicodeEncodeError):
                transport.submit(echo(prefix, "\ud800"), answers.append)
            assert await submitted(transport, echo(prefix, "a")) == b"a"
    assert answers == []


async def test_the_order_holds_while_the_server_does_not_read(start_valkey: Callable[..., Server]) -> None:
    server = start_valkey()
    async with AsyncTransport(server.url, policy=ConnectionPolicy(command_timeout=20)) as transport:
        await transport.run(echo("a", "known"))
        server.freeze()
        answers: list[Any] = []
        for number in range(30):
            transport.submit(echo("a", f"{number:02}" + "x" * 1_000_000), answers.append)
            await asyncio.sleep(0)
        cancelled = asyncio.create_task(transport.run(add_to("count")))
        await asyncio.sleep(0)
        cancelled.cancel()
        server.thaw()
        last = await submitted(transport, echo("a", "last"))
        assert [int(answer[:2]) for answer in answers] == list(range(30))
        assert last == b"last"
        assert await transport.run(get("count")) is None  # It was cancelled before it could be written.


async def test_closing_ends_a_pause_between_attempts(start_valkey: Callable[..., Server]) -> None:
    server = start_valkey()
    policy = ConnectionPolicy(reconnect_delay=30, max_reconnect_delay=30, call_attempts=5)
    transport = AsyncTransport(server.url, policy=policy)
    await transport.connect()
    server.kill()
    answers: list[Any] = []
    transport.submit(get("a"), answers.append)
    waiting = asyncio.create_task(transport.run(get("a")))
    await asyncio.wait({waiting}, timeout=0.2)
    await asyncio.wait_for(transport.close(), 5)
    with pytest.raises(TorilError):
        await asyncio.wait_for(waiting, 5)
    assert [isinstance(answer, TorilError) for answer in answers] == [True]


async def test_closing_answers_what_is_on_its_way(start_valkey: Callable[..., Server]) -> None:
    server = start_valkey()
    transport = AsyncTransport(server.url)
    await transport.connect()
    server.freeze()
    answers: list[Any] = []
    commands: list[Command[Any]] = [add_to("a"), get("a"), echo("a", "x")]
    for command in commands:
        transport.submit(command, answers.append)
    await asyncio.wait_for(transport.close(), 5)
    assert sum(isinstance(answer, ReplyLost) for answer in answers) == 1
    assert all(isinstance(answer, (Closed, RedisUnavailable)) for answer in answers)
    assert len(answers) == 3
    server.thaw()


class TestALostReply:
    @pytest.fixture
    def proxy(self, valkey: Server) -> Iterator[Proxy]:
        with Proxy(valkey.port) as proxy:
            yield proxy

    @pytest.mark.parametrize("fault", FAULTS)
    async def test_makes_nothing_run_twice_that_must_not(
        self, proxy: Proxy, prefix: str, fault: Kind
    ) -> None:
        async with AsyncTransport(proxy.url, policy=POLICY) as transport:
            await transport.run(add_to(f"{prefix}:other"))
            proxy.arm(fault, f"{prefix}:a".encode())
            assert isinstance(await submitted(transport, add_to(f"{prefix}:a")), ReplyLost)
            count = await transport.run(get(f"{prefix}:a"))
            assert count == (None if fault == "cut before" else b"1")

    @pytest.mark.parametrize("fault", FAULTS)
    async def test_of_a_call_that_may_run_twice_is_asked_for_again(
        self, proxy: Proxy, prefix: str, fault: Kind
    ) -> None:
        async with AsyncTransport(proxy.url, policy=POLICY) as transport:
            await transport.run(echo(prefix, "known"))
            proxy.arm(fault, b"again and again")
            assert await submitted(transport, echo(prefix, "again and again")) == b"again and again"
