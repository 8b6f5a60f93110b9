"""What is lent is not used, what is forked is not shared, what is large is not hoarded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel
from redis.asyncio.cluster import RedisCluster as AsyncCluster

from tests.integration.transport.conftest import OpenStore
from tests.integration.transport.transport_adapters import echo, get, put, raw_request
from tests.servers import Server, ValkeyCluster, ValkeySentinel
from tests.servers.sentinel import SERVICE
from toril import ListQueue, StreamQueue
from toril.errors import Closed, InvalidOption, TorilError
from toril.transport import AsyncTransport, BlockingTransport, ConnectionPolicy, parse_address

MEGABYTE = 1_000_000


class TestALentClient:
    """Lends its settings, and is neither used nor closed."""

    async def test_of_one_server(self, valkey: Server, prefix: str, open_transport: OpenStore) -> None:
        lent = redis.Redis(port=valkey.port, db=2)
        mine = lent.client_id()
        transport = open_transport(lent)
        await transport.run(put(f"{prefix}:a", "1"))
        await transport.close()
        assert lent.get(f"{prefix}:a") == b"1"
        assert lent.client_id() == mine
        assert len(lent.client_list()) == 2  # The server's guard and itself.
        lent.close()

    async def test_that_was_never_connected_stays_so(self, valkey: Server, open_transport: OpenStore) -> None:
        lent = redis.Redis(port=valkey.port)
        await open_transport(lent).run(raw_request("PING"))
        assert lent.connection_pool._available_connections == []
        lent.close()

    async def test_of_asyncio(self, valkey: Server, prefix: str, open_transport: OpenStore) -> None:
        async with redis.asyncio.Redis.from_url(valkey.socket_url) as lent:
            mine = await lent.client_id()
            transport = open_transport(lent)
            await transport.run(put(f"{prefix}:a", "1"))
            await transport.close()
            assert await lent.get(f"{prefix}:a") == b"1"
            assert await lent.client_id() == mine

    async def test_with_a_password(
        self, start_valkey: Callable[..., Server], open_transport: OpenStore
    ) -> None:
        server = start_valkey()
        with server.client() as client:
            client.config_set("requirepass", "s3cret")
        with redis.Redis(port=server.port, password="s3cret") as lent:
            assert await open_transport(lent).run(echo("a", "in")) == b"in"

    async def test_of_a_cluster(self, cluster: ValkeyCluster, prefix: str, open_transport: OpenStore) -> None:
        with redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as lent:
            transport = open_transport(lent)
            assert transport.transport.is_cluster
            await transport.run_many([put(f"{prefix}:{n}", str(n)) for n in range(20)])
            await transport.close()
            assert lent.get(f"{prefix}:7") == b"7"

    async def test_of_an_asyncio_cluster(
        self, cluster: ValkeyCluster, prefix: str, open_transport: OpenStore
    ) -> None:
        async with AsyncCluster(host="127.0.0.1", port=cluster.nodes[0].port) as lent:
            transport = open_transport(lent)
            assert transport.transport.is_cluster
            await transport.run(put(f"{prefix}:a", "1"))
            await transport.close()
            assert await lent.get(f"{prefix}:a") == b"1"

    async def test_of_a_sentinel(
        self, sentinel: ValkeySentinel, prefix: str, open_transport: OpenStore
    ) -> None:
        watch = redis.sentinel.Sentinel([("127.0.0.1", sentinel.sentinel.port)])
        with watch.master_for(SERVICE) as lent:
            transport = open_transport(lent)
            assert transport.transport.address.service == SERVICE
            await transport.run(put(f"{prefix}:a", "1"))
            await transport.close()
            assert lent.get(f"{prefix}:a") == b"1"
        for client in watch.sentinels:
            client.close()

    async def test_of_an_asyncio_sentinel(
        self, sentinel: ValkeySentinel, prefix: str, open_transport: OpenStore
    ) -> None:
        watch = redis.asyncio.Sentinel([("127.0.0.1", sentinel.sentinel.port)])
        async with watch.master_for(SERVICE) as lent:
            await open_transport(lent).run(put(f"{prefix}:a", "1"))
            assert await lent.get(f"{prefix}:a") == b"1"
        for client in watch.sentinels:
            await client.aclose()

    def test_lends_no_time_outs_and_no_retries(self) -> None:
        lent = redis.Redis(
            host="h", port=7, socket_timeout=99, retry_on_error=[ValueError], client_name="theirs", db=4
        )
        address = parse_address(lent)
        assert (address.nodes, dict(address.login)) == ((("h", 7),), {"db": 4})
        lent.close()

    def test_of_another_kind_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="give a URL or a redis-py client"):
            parse_address(42)


class TestAFork:
    @pytest.fixture
    def transport(self, valkey: Server) -> Iterator[BlockingTransport]:
        with BlockingTransport(valkey.url) as transport:
            yield transport

    def test_speaks_on_connections_of_its_own(self, transport: BlockingTransport, prefix: str) -> None:
        assert transport.run(echo(prefix, "before")) == b"before"
        child = in_a_child(lambda: run_calls(transport, prefix, "child"))
        run_calls(transport, prefix, "parent")
        assert child() == 0

    def test_that_closes_the_store_leaves_its_parents_alone(
        self, transport: BlockingTransport, prefix: str
    ) -> None:
        identity = transport.run(raw_request("CLIENT", "ID"))
        assert in_a_child(transport.close)() == 0
        assert transport.run(raw_request("CLIENT", "ID")) == identity

    def test_may_happen_while_another_thread_speaks(self, transport: BlockingTransport, prefix: str) -> None:
        with transport._lock:  # As if a thread that does not exist in the child held it.
            child = in_a_child(lambda: run_calls(transport, prefix, "child"))
        assert child() == 0

    def test_of_a_closed_store_is_closed(self, valkey: Server) -> None:
        transport = BlockingTransport(valkey.url)
        transport.close()

        def speak() -> None:
            with pytest.raises(Closed):
                transport.run(raw_request("PING"))

        assert in_a_child(speak)() == 0


def run_calls(transport: BlockingTransport, key: str, who: str) -> None:
    for turn in range(200):
        assert transport.run(echo(key, f"{who} {turn}")) == f"{who} {turn}".encode()


def in_a_child(act: Callable[[], Any]) -> Callable[[], int]:
    """Starts a forked child; the value waits for it and gives its exit code."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:  # noqa: BLE001  # A child must not return into the tests of its parent.
            os._exit(1)
        os._exit(0)
    return lambda: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class TestLargeValues:
    async def test_pass_in_both_directions(
        self, server: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(server.url)
        values = [os.urandom(10 * MEGABYTE) for _ in range(3)]
        await asyncio.gather(*(transport.run(put(f"{prefix}:{n}", value)) for n, value in enumerate(values)))
        found = await transport.run_many([get(f"{prefix}:{n}") for n in range(3)])
        assert found == values

    async def test_do_not_hold_up_small_ones_for_ever(
        self, valkey: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(valkey.url)
        large = [
            asyncio.create_task(transport.run(put(f"{prefix}:large", b"x" * 10 * MEGABYTE))) for _ in range(4)
        ]
        said = await asyncio.gather(*(transport.run(echo(prefix, str(n))) for n in range(50)))
        assert said == [str(n).encode() for n in range(50)]
        await asyncio.gather(*large)

    async def test_wait_in_their_callers_when_the_server_does_not_read(
        self, start_valkey: Callable[..., Server]
    ) -> None:
        server = start_valkey()
        policy = ConnectionPolicy(command_timeout=20)
        async with AsyncTransport(server.url, policy=policy) as transport:
            await transport.connect()
            (connection,) = transport._connections.values()
            server.freeze()
            calls = [asyncio.create_task(transport.run(put("a", b"x" * MEGABYTE))) for _ in range(50)]
            for _ in range(50):
                await asyncio.sleep(0)
            # What the kernel does not take is kept: a few calls' worth, not all of it.
            assert connection._transport.get_write_buffer_size() < 5 * MEGABYTE
            server.thaw()
            assert set(await asyncio.gather(*calls)) == {b"OK"}

    async def test_that_wait_are_given_up_after_the_time_out(
        self, start_valkey: Callable[..., Server]
    ) -> None:
        server = start_valkey()
        policy = ConnectionPolicy(
            command_timeout=0.3, connect_timeout=0.3, call_attempts=2, reconnect_delay=0.01
        )
        async with AsyncTransport(server.url, policy=policy) as transport:
            await transport.connect()
            server.freeze()
            calls = [transport.run(put("a", b"x" * MEGABYTE)) for _ in range(30)]
            outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
            assert all(isinstance(outcome, Exception) for outcome in outcomes)
            server.thaw()


@pytest.mark.parametrize("kind", [ListQueue, StreamQueue])
def test_a_second_event_loop_is_refused_by_all_that_connects(
    kind: type[ListQueue | StreamQueue], server_url: str, prefix: str
) -> None:
    queue = kind("emails", redis=server_url, prefix=prefix)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(queue.add("send", {}))
        with pytest.raises(TorilError, match="belongs to another event loop"):
            second.run(queue.add("send", {}))
        first.run(queue.close())
