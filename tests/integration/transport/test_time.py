"""Calls that take long, are given up or cancelled: nobody waits for ever, and no reply reaches another's call."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.integration.transport.conftest import OpenStore
from tests.integration.transport.transport_adapters import PATIENT, QUICK, add_to, echo, get, put, raw_request
from tests.servers import Server
from toril.commands.command import Command, Replay, plain
from toril.errors import Closed, RedisUnavailable, ReplyLost
from toril.transport import AsyncTransport, BlockingTransport, ConnectionPolicy

SHORT = ConnectionPolicy(
    connect_timeout=0.3, command_timeout=0.3, reconnect_delay=0.01, max_reconnect_delay=0.1, call_attempts=3
)


@pytest.fixture
def own(start_valkey: Callable[..., Server]) -> Server:
    return start_valkey()


@pytest.fixture
def frozen(own: Server) -> Iterator[Server]:
    """A server that a test freezes; it goes on afterwards."""
    yield own
    own.thaw()


class TestAServerThatHangs:
    async def test_costs_a_call_its_time_out_and_runs_it_once(
        self, frozen: Server, open_transport: OpenStore
    ) -> None:
        transport = open_transport(frozen.url, SHORT)
        await transport.run(add_to("a"))
        frozen.freeze()
        with pytest.raises(ReplyLost, match=r"the reply to test\.add was lost"):
            await transport.run(add_to("a"))
        frozen.thaw()
        assert await transport.run(get("a")) == b"2"

    async def test_lets_reads_go_on_when_it_comes_back(
        self, frozen: Server, open_transport: OpenStore
    ) -> None:
        transport = open_transport(
            frozen.url, ConnectionPolicy(command_timeout=0.2, connect_timeout=0.2, call_attempts=50)
        )
        await transport.run(put("a", "1"))
        frozen.freeze()
        call = asyncio.create_task(transport.run(get("a")))
        await asyncio.sleep(0.5)  # Longer than the time-out: the first attempt is lost.
        frozen.thaw()
        assert await call == b"1"

    async def test_gives_no_reply_to_the_wrong_call(self, frozen: Server, open_transport: OpenStore) -> None:
        transport = open_transport(frozen.url, SHORT)
        await transport.run(echo("a", "before"))
        frozen.freeze()
        lost = await asyncio.gather(
            *(transport.run(echo("a", f"lost {n}")) for n in range(4)), return_exceptions=True
        )
        assert all(isinstance(one, RedisUnavailable) for one in lost)
        frozen.thaw()
        said = await asyncio.gather(*(transport.run(echo("a", f"word {n}")) for n in range(50)))
        assert said == [f"word {n}".encode() for n in range(50)]

    async def test_is_noticed_by_a_blocking_read(self, frozen: Server, open_transport: OpenStore) -> None:
        policy = ConnectionPolicy(
            command_timeout=0.2, connect_timeout=0.2, block_margin=0.1, call_attempts=1, reconnect_delay=0.01
        )
        transport = open_transport(frozen.url, policy)
        await transport.connect()
        frozen.freeze()
        with pytest.raises(RedisUnavailable):
            await transport.run_blocking(raw_request("BLPOP", "list", 0.1), 0.1)


class TestAServerThatIsAway:
    async def test_is_an_error_after_the_attempts_of_one_call(
        self, own: Server, open_transport: OpenStore
    ) -> None:
        transport = open_transport(own.url, QUICK)
        own.kill()
        with pytest.raises(RedisUnavailable, match="cannot be reached"):
            await transport.run(add_to("a"))

    async def test_is_found_again(self, own: Server, open_transport: OpenStore) -> None:
        transport = open_transport(own.url, PATIENT)
        await transport.run(echo("a", "one"))
        own.kill()
        call = asyncio.create_task(transport.run(echo("a", "two")))
        await asyncio.sleep(0)
        own.start()
        assert await call == b"two"

    async def test_loses_no_call_that_was_never_sent(self, own: Server, open_transport: OpenStore) -> None:
        """Connections that ended while nobody spoke are noticed before something is sent into them."""
        transport = open_transport(own.url, PATIENT)
        await asyncio.gather(*(transport.run(add_to("a")) for _ in range(5)))
        own.kill()
        own.start()
        for _ in range(3):
            await asyncio.sleep(0)  # The event loop hears of the end of the connection.
        assert await transport.run(add_to("b")) == 1

    async def test_is_asked_more_and_more_rarely(self) -> None:
        policy = ConnectionPolicy()
        delays = [policy.delay_before(attempt, lambda: 0.5) for attempt in range(12)]
        assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
        assert delays[-1] == pytest.approx(30)
        spread = [policy.delay_before(0) for _ in range(200)]
        assert 0.08 <= min(spread) < max(spread) <= 0.12


class TestCancelling:
    async def test_a_call_in_flight_disturbs_no_other(self, own: Server) -> None:
        async with AsyncTransport(own.url) as transport:
            await transport.connect()
            with own.client() as client:
                client.client_pause(100, all=True)
            calls = [asyncio.create_task(transport.run(echo("a", str(n)))) for n in range(40)]
            await asyncio.sleep(0)
            for call in calls[::2]:
                call.cancel()
            said = await asyncio.gather(*calls, return_exceptions=True)
        assert said[1::2] == [str(n).encode() for n in range(1, 40, 2)]
        assert all(isinstance(one, asyncio.CancelledError) for one in said[::2])

    async def test_at_random_moments_mixes_no_replies(self, valkey: Server, prefix: str) -> None:
        chance = random.Random(7)
        async with AsyncTransport(valkey.url) as transport:

            async def run_calls(name: int) -> int:
                answered = 0
                for turn in range(60):
                    word = f"{name}:{turn}:{'x' * chance.choice([1, 50_000])}"
                    call = asyncio.create_task(
                        transport.run_many([echo(prefix, word), echo(prefix, word[::-1])])
                    )
                    if chance.random() < 0.3:
                        await asyncio.sleep(chance.random() / 500)
                        call.cancel()
                    try:
                        assert await call == [word.encode(), word[::-1].encode()]
                        answered += 1
                    except asyncio.CancelledError:
                        continue
                return answered

            answered = await asyncio.gather(*(run_calls(name) for name in range(10)))
        assert min(answered) > 20

    async def test_while_connecting_leaves_nothing_open(self, valkey: Server) -> None:
        for steps in range(12):
            async with AsyncTransport(valkey.url) as transport:
                call = asyncio.create_task(transport.run(raw_request("PING")))
                for _ in range(steps):
                    await asyncio.sleep(0)
                call.cancel()
                outcome = (await asyncio.gather(call, return_exceptions=True))[0]
                assert isinstance(outcome, asyncio.CancelledError) or outcome == b"PONG"
        # The server's guard looks for connections left open.

    async def test_a_reader_while_it_connects_leaves_nothing_open(self, valkey: Server, prefix: str) -> None:
        for steps in range(20):
            async with AsyncTransport(valkey.url) as transport, transport.reader() as reader:
                call = asyncio.create_task(reader.run(raw_request("BLPOP", f"{prefix}:list", 0.05), 0.05))
                for _ in range(steps):
                    await asyncio.sleep(0)
                call.cancel()
                outcome = (await asyncio.gather(call, return_exceptions=True))[0]
                assert isinstance(outcome, asyncio.CancelledError) or outcome is None

    async def test_closing_while_others_connect_leaves_nothing_open(self, valkey: Server) -> None:
        for steps in range(12):
            transport = AsyncTransport(valkey.url)
            calls = [asyncio.create_task(transport.run(raw_request("PING"))) for _ in range(3)]
            for _ in range(steps):
                await asyncio.sleep(0)
            await transport.close()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, (bytes, str, Closed, RedisUnavailable)), outcome


class TestUnblocking:
    async def test_ends_a_blocked_read_at_once(self, valkey: Server, prefix: str) -> None:
        async with AsyncTransport(valkey.url) as transport, transport.reader() as reader:
            call = asyncio.create_task(reader.run(raw_request("BLPOP", f"{prefix}:list", 30), 30))
            await until_blocked(valkey)
            await reader.unblock()
            assert await asyncio.wait_for(call, 2) is None

    async def test_ends_a_read_that_the_server_has_not_seen_yet(self, valkey: Server, prefix: str) -> None:
        async with AsyncTransport(valkey.url) as transport, transport.reader() as reader:
            await transport.connect()
            await reader.run(raw_request("PING"), 1)
            for _ in range(20):
                call = asyncio.create_task(reader.run(raw_request("BLPOP", f"{prefix}:list", 30), 30))
                await asyncio.sleep(0)  # It is on its way, no more.
                await asyncio.wait_for(reader.unblock(), 2)
                assert await asyncio.wait_for(call, 2) is None

    async def test_of_nobody_is_no_error(self, valkey: Server) -> None:
        async with AsyncTransport(valkey.url) as transport, transport.reader() as reader:
            await reader.unblock()
            assert await reader.run(raw_request("PING"), 1) == b"PONG"
            await reader.unblock()
            assert await reader.run(raw_request("PING"), 1) == b"PONG"

    async def test_loses_nothing_that_was_popped(self, valkey: Server, prefix: str) -> None:
        key, count = f"{prefix}:list", 300
        chance = random.Random(11)
        found: list[int] = []
        async with AsyncTransport(valkey.url) as transport, transport.reader() as reader:

            async def consume() -> None:
                while len(found) < count:
                    reply = await reader.run(pop(key), 5)
                    if reply is not None:
                        found.append(int(reply[1]))

            async def produce() -> None:
                for number in range(count):
                    await transport.run(raw_request("RPUSH", key, number))
                    if chance.random() < 0.3:
                        await asyncio.sleep(0)

            async def disturb() -> None:
                while len(found) < count:
                    await reader.unblock()
                    await asyncio.sleep(chance.random() / 1000)

            await asyncio.wait_for(asyncio.gather(consume(), produce(), disturb()), 30)
        assert found == list(range(count))


def pop(key: str) -> Command[Any]:
    return plain(lambda reply: reply, "BLPOP", key, 5, replay=Replay.NEVER)


async def until_blocked(server: Server) -> None:
    with server.client() as client:
        while not client.info("clients")["blocked_clients"]:
            await asyncio.sleep(0.005)


def test_threads_share_a_blocking_store_without_mixing_replies(valkey: Server, prefix: str) -> None:
    with BlockingTransport(valkey.url, policy=ConnectionPolicy(max_connections=3)) as transport:
        wrong: list[tuple[str, bytes]] = []

        def run_calls(name: int) -> None:
            for turn in range(100):
                word = f"{name}:{turn}"
                if (said := transport.run(echo(prefix, word))) != word.encode():
                    wrong.append((word, said))

        threads = [threading.Thread(target=run_calls, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        with valkey.client() as client:
            kept = [one for one in client.client_list() if one["lib-name"].startswith("toril")]
        assert len(kept) <= 3


async def test_a_blocking_read_may_last_longer_than_a_command(
    valkey: Server, prefix: str, open_transport: OpenStore
) -> None:
    transport = open_transport(valkey.url, SHORT)
    assert await transport.run_blocking(raw_request("BLPOP", f"{prefix}:list", 0.6), 0.6) is None


async def test_a_clock_that_is_off_does_no_harm(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, open_transport: OpenStore
) -> None:
    import time

    true = time.time()
    monkeypatch.setattr(time, "time", lambda: true + 3600)
    assert abs(await open_transport(valkey.url).now_ms() - true * 1000) < 5000


def test_errors_of_redis_py_do_not_leave_the_transport(own: Server) -> None:
    with BlockingTransport(own.url, policy=QUICK) as transport:
        own.kill()
        with pytest.raises(RedisUnavailable) as raised:
            transport.run(raw_request("PING"))
    assert not isinstance(raised.value, redis.RedisError)
