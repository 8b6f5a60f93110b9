"""What the server refuses for a while is asked again until it goes; what it refuses for good is said at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

import pytest
import redis

from tests.integration.transport.conftest import OpenStore
from tests.integration.transport.transport_adapters import (
    PATIENT,
    QUICK,
    TransportAdapter,
    add_to,
    echo,
    get,
    put,
    raw_request,
)
from tests.servers import Server, ValkeyCluster
from tests.waiting import until
from toril import ConnectionPolicy, ListWorker, Queue, StreamWorker, Worker
from toril.commands.command import Replay
from toril.errors import (
    CrossSlot,
    NoSuchDatabase,
    PermanentError,
    RedisError,
    RedisOutOfMemory,
    RedisUnavailable,
    ScriptFailed,
)


@pytest.fixture
def own(start_valkey: Callable[..., Server]) -> Server:
    return start_valkey(enable_debug_command="yes", busy_reply_threshold="20")


@pytest.fixture
def admin(own: Server) -> Iterator[redis.Redis]:
    with own.client() as client:
        yield client


class TestNoScript:
    async def test_one_call_goes_on(self, valkey: Server, prefix: str, open_transport: OpenStore) -> None:
        transport = open_transport(valkey.url)
        for expected in (1, 2, 3):
            await transport.run(raw_request("SCRIPT", "FLUSH"))
            assert await transport.run(add_to(f"{prefix}:a")) == expected

    async def test_a_pipeline_goes_on_and_runs_nothing_twice(
        self, server: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(server.url)
        for _ in range(3):
            await transport.run(raw_request("SCRIPT", "FLUSH"))
            await transport.run_many(
                [add_to(f"{prefix}:{n}") if n % 2 else echo(prefix, "x") for n in range(40)]
            )
        counts = await transport.run_many([get(f"{prefix}:{n}") for n in range(1, 40, 2)])
        assert counts == [b"3"] * 20

    async def test_a_text_is_sent_once_for_a_whole_pipeline(
        self, valkey: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(valkey.url)
        await transport.run(raw_request("CONFIG", "RESETSTAT"))
        await transport.run(raw_request("SCRIPT", "FLUSH"))
        await transport.run_many([add_to(f"{prefix}:a") for _ in range(50)])
        with valkey.client() as client:
            stats = client.info("commandstats")
        assert stats["cmdstat_eval"]["calls"] == 1
        assert await transport.run(get(f"{prefix}:a")) == b"50"

    async def test_a_cluster_goes_on(
        self, cluster: ValkeyCluster, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(cluster.url)
        for _ in range(3):
            flush_all(cluster.nodes)
            assert all(isinstance(n, int) for n in await transport.run_many(
                [add_to(f"{prefix}:{n}") for n in range(60)]
            ))  # fmt: skip
            flush_all(cluster.nodes)
            await transport.run(add_to(f"{prefix}:0"))
        assert await transport.run(get(f"{prefix}:0")) == b"6"
        assert await transport.run(get(f"{prefix}:59")) == b"3"

    @pytest.mark.parametrize("place", ["server", "cluster"])
    async def test_flushing_ten_times_a_second_under_load_costs_no_call(
        self,
        valkey: Server,
        cluster: ValkeyCluster,
        prefix: str,
        place: str,
        open_transport: OpenStore,
    ) -> None:
        nodes, url = ([valkey], valkey.url) if place == "server" else (cluster.nodes, cluster.url)
        transport = open_transport(url)
        over = asyncio.Event()
        done = await asyncio.gather(
            flushing(nodes, over), *(adding(transport, f"{prefix}:{{{n}}}:count", over) for n in range(8))
        )
        counts = [await transport.run(get(f"{prefix}:{{{n}}}:count")) for n in range(8)]
        assert [int(count or 0) for count in counts] == done[1:]
        assert min(done[1:]) > 0


def flush_all(nodes: list[Server]) -> None:
    for node in nodes:
        with node.client() as client:
            client.script_flush()


async def flushing(nodes: list[Server], over: asyncio.Event) -> int:
    for _ in range(10):
        await asyncio.to_thread(flush_all, nodes)
        await asyncio.sleep(0.1)  # The rate is what is tested.
    over.set()
    return 0


async def adding(transport: TransportAdapter, key: str, over: asyncio.Event) -> int:
    count = 0
    while not over.is_set():
        await transport.run(add_to(key))
        replies = await transport.run_many([add_to(key), echo(key, "x"), add_to(key)])
        assert [type(reply) for reply in replies] == [int, bytes, int]
        count += 3
    return count


class TestReadonly:
    async def test_a_server_that_is_a_replica_for_a_while_is_waited_for(
        self, own: Server, admin: redis.Redis, start_valkey: Callable[..., Server], open_transport: OpenStore
    ) -> None:
        transport = open_transport(own.url, PATIENT)
        await transport.run(add_to("a"))
        admin.replicaof("127.0.0.1", start_valkey().port)
        calls = [asyncio.create_task(transport.run(add_to("b"))) for _ in range(5)]
        many = asyncio.create_task(transport.run_many([add_to("b"), put("c", "1")]))
        await until_refused(admin)
        assert not any(call.done() for call in calls)
        admin.replicaof("NO", "ONE")
        assert sorted([*await asyncio.gather(*calls), (await many)[0]]) == [1, 2, 3, 4, 5, 6]

    async def test_a_call_that_is_refused_takes_no_reply_from_the_calls_beside_it(
        self, own: Server, admin: redis.Redis, start_valkey: Callable[..., Server], open_transport: OpenStore
    ) -> None:
        async with Relay(own.port) as relay:
            transport = open_transport(f"redis://127.0.0.1:{relay.port}", PATIENT)
            await transport.run_many([add_to("a"), echo("a", "x")])  # the server knows the scripts
            admin.replicaof("127.0.0.1", start_valkey().port)
            refused = asyncio.create_task(transport.run(add_to("b")))
            once = replace(echo("a", "hello"), replay=Replay.NEVER)
            beside = [asyncio.create_task(transport.run(once)) for _ in range(3)]
            await relay.refusal_passed.wait()
            await until_refused(admin)
            admin.replicaof("NO", "ONE")
            assert await refused == 1
            relay.go_on.set()
            assert await asyncio.gather(*beside) == [b"hello"] * 3

    async def test_a_server_that_stays_a_replica_is_an_error(
        self, own: Server, admin: redis.Redis, start_valkey: Callable[..., Server], open_transport: OpenStore
    ) -> None:
        admin.replicaof("127.0.0.1", start_valkey().port)
        await until_in_step(admin)
        with pytest.raises(RedisUnavailable, match="READONLY"):
            await open_transport(own.url, QUICK).run(put("a", "1"))
        with pytest.raises(RedisUnavailable, match="READONLY"):
            await open_transport(own.url, QUICK).run(add_to("a"))


class Relay:
    """Stands before a server. Behind the first refusal that it lets pass, the replies of that connection wait."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.refusal_passed = asyncio.Event()
        self.go_on = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        for task in (
            asyncio.create_task(self._pass_on(reader, to_server)),
            asyncio.create_task(self._answer(from_server, writer)),
        ):
            self._tasks.add(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                before, refusal, rest = data.partition(b"-READONLY")
                if refusal and not self.refusal_passed.is_set():
                    line, end, data = rest.partition(b"\r\n")
                    writer.write(before + refusal + line + end)
                    self.refusal_passed.set()
                    await self.go_on.wait()
                writer.write(data)
        finally:
            writer.close()


async def until_in_step(admin: redis.Redis) -> None:
    """Until a new replica has its primary's data: while it loads them, it refuses everything for that reason."""
    while admin.info("replication").get("master_link_status") != "up":
        await asyncio.sleep(0.005)


async def until_refused(admin: redis.Redis) -> None:
    """Until the server has refused something: then a call is under way."""
    while not any("READONLY" in name for name in admin.info("errorstats")):
        await asyncio.sleep(0.005)


async def test_a_server_that_loads_its_data_is_waited_for(
    own: Server, admin: redis.Redis, open_transport: OpenStore
) -> None:
    transport = open_transport(own.url, PATIENT)
    with admin.pipeline() as pipeline:
        for number in range(2000):
            pipeline.set(f"k{number}", "x" * 100)
        pipeline.execute()
    await transport.run(add_to("count"))
    admin.config_set("key-load-delay", "200")
    admin.config_set("loading-process-events-interval-bytes", "1024")
    loading = threading.Thread(target=admin.execute_command, args=("DEBUG", "RELOAD"))
    loading.start()
    with own.client() as watcher:
        await until(lambda: is_loading(watcher), "the server loads its data")
    assert await transport.run(add_to("count")) == 2
    await asyncio.to_thread(loading.join)


def is_loading(client: redis.Redis) -> bool:
    try:
        return bool(client.info("persistence")["loading"])
    except redis.BusyLoadingError:
        return True


async def test_a_server_busy_with_a_script_is_waited_for(
    own: Server, admin: redis.Redis, open_transport: OpenStore
) -> None:
    transport = open_transport(own.url, PATIENT)
    await transport.run(add_to("count"))

    def hog() -> None:
        with own.client() as client, pytest.raises(redis.ResponseError):
            client.eval("while true do end", 0)

    busy = asyncio.create_task(asyncio.to_thread(hog))

    async def has_refused_us() -> bool:
        return any("BUSY" in name for name in await asyncio.to_thread(errors_of, admin))

    await until(lambda: is_busy(admin), "the server runs the script")
    call = asyncio.create_task(transport.run(add_to("count")))
    await until(has_refused_us, "the server refuses a call")
    assert await call == 2
    await busy


def is_busy(admin: redis.Redis) -> bool:
    try:
        admin.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


def errors_of(admin: redis.Redis) -> list[str]:
    """Ends the long script, once somebody else was told to wait for it."""
    try:
        admin.script_kill()
    except redis.ResponseError:
        return list(admin.info("errorstats"))
    return []


class TestAFullServer:
    async def test_refuses_writes_at_once_with_a_remedy(
        self, own: Server, admin: redis.Redis, open_transport: OpenStore
    ) -> None:
        transport = open_transport(own.url, PATIENT)
        await transport.run(put("a", "1"))
        admin.config_set("maxmemory", "1")
        for command in (put("b", "1"), add_to("b")):
            with pytest.raises(RedisOutOfMemory, match="raise maxmemory"):
                await transport.run(command)
        assert await transport.run(get("a")) == b"1"

    async def test_of_clients_is_waited_for(
        self, own: Server, admin: redis.Redis, open_transport: OpenStore
    ) -> None:
        admin.config_set("maxclients", "10")
        guests = [own.client() for _ in range(9)]
        for guest in guests:
            guest.client_id()
        call = asyncio.create_task(open_transport(own.url, PATIENT).run(echo("a", "hello")))
        await until(lambda: admin.info("stats")["rejected_connections"], "the connection is refused")
        assert not call.done()
        for guest in guests:
            guest.close()
        assert await call == b"hello"

    async def test_of_clients_is_an_error_when_it_lasts(
        self, own: Server, admin: redis.Redis, open_transport: OpenStore
    ) -> None:
        admin.config_set("maxclients", "1")
        with pytest.raises(RedisUnavailable, match="cannot be reached"):
            await open_transport(own.url, QUICK).run(raw_request("PING"))


class TestForGood:
    async def test_a_script_that_raises_is_said_to_have_failed(
        self, valkey: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(valkey.url)
        await transport.run(raw_request("RPUSH", f"{prefix}:list", "a"))
        with pytest.raises(ScriptFailed, match="WRONGTYPE"):
            await transport.run(add_to(f"{prefix}:list"))

    async def test_an_unknown_command_is_an_error_of_the_store(
        self, valkey: Server, open_transport: OpenStore
    ) -> None:
        with pytest.raises(RedisError, match="unknown command"):
            await open_transport(valkey.url).run(raw_request("NONSENSE"))

    async def test_keys_of_two_slots_are_refused(
        self, cluster: ValkeyCluster, prefix: str, open_transport: OpenStore
    ) -> None:
        with pytest.raises(CrossSlot, match="shared hash tag"):
            await open_transport(cluster.url).run(raw_request("MGET", f"{prefix}:a", f"{prefix}:b"))

    async def test_a_cluster_spoken_to_as_one_server_is_explained(
        self, cluster: ValkeyCluster, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(cluster.nodes[0].url)
        replies = await transport.run_many([get(f"{prefix}:{n}") for n in range(20)])
        moved = [reply for reply in replies if isinstance(reply, RedisUnavailable)]
        assert moved
        assert "redis+cluster://" in str(moved[0])


class TestNoSuchDatabase:
    """No further attempt would succeed, so none is made: the pause before it would outlast the test."""

    NEVER_AGAIN = ConnectionPolicy(reconnect_delay=300.0, max_reconnect_delay=300.0, call_attempts=5)

    async def test_it_is_said_at_once_with_its_number(
        self, server: Server, open_transport: OpenStore
    ) -> None:
        transport = open_transport(f"{server.url}/99", self.NEVER_AGAIN)
        with pytest.raises(NoSuchDatabase, match=r"no database 99 .*; give a number below") as refused:
            await transport.run(raw_request("PING"))
        assert PermanentError in refused.type.__mro__
        assert RedisUnavailable not in refused.type.__mro__

    async def test_a_blocking_read_says_it_too(self, server: Server, open_transport: OpenStore) -> None:
        transport = open_transport(f"{server.url}/99", self.NEVER_AGAIN)
        with pytest.raises(NoSuchDatabase):
            await transport.run_blocking(raw_request("BLPOP", "nothing", 1), 1)

    async def test_a_node_of_a_cluster_says_it_too(
        self, cluster: ValkeyCluster, open_transport: OpenStore
    ) -> None:
        transport = open_transport(f"{cluster.nodes[0].url}/99", self.NEVER_AGAIN)
        with pytest.raises(NoSuchDatabase, match="a cluster has only 0"):
            await transport.run(raw_request("PING"))

    @pytest.mark.parametrize("kind", [Worker, ListWorker, StreamWorker])
    async def test_a_worker_does_not_wait_for_it(
        self, server: Server, prefix: str, kind: type[Worker]
    ) -> None:
        worker = kind("q", print, redis=f"{server.url}/99", prefix=prefix, policy=self.NEVER_AGAIN)
        with pytest.raises(NoSuchDatabase):
            await worker.start()

    async def test_a_queue_says_it_when_it_is_entered(self, server: Server, prefix: str) -> None:
        queue = Queue("q", redis=f"{server.url}/99", prefix=prefix, policy=self.NEVER_AGAIN)
        with pytest.raises(NoSuchDatabase):
            await queue.open()
        await queue.close()
