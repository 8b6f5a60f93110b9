"""A password appears in nothing that a person could read: no repr, no error, no log line, whatever goes wrong."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel

from tests.integration.transport.conftest import OpenStore
from tests.integration.transport.transport_adapters import TransportAdapter, raw_request
from tests.servers import Server, free_port
from toril.errors import InvalidOption, TorilError
from toril.transport import AsyncTransport, BlockingTransport, ConnectionPolicy, parse_address

CANARY = "c4n4ry"
ONCE = ConnectionPolicy(call_attempts=2, reconnect_delay=0.01, connect_timeout=0.3, command_timeout=0.3)

WELL_FORMED = [
    f"redis://:{CANARY}@localhost:6379/2",
    f"redis://anna:{CANARY}@localhost",
    f"redis://localhost?password={CANARY}",
    f"rediss://:{CANARY}@localhost",
    f"unix://:{CANARY}@/tmp/socket?db=1",
    f"unix:///tmp/socket?password={CANARY}",
    f"redis+sentinel://:{CANARY}@a:1,b:2/service/3?sentinel_password={CANARY}",
    f"redis+cluster://anna:{CANARY}@a:1,b:2",
]


def written(error: BaseException) -> str:
    """Everything a traceback would show, causes included."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))


@pytest.mark.parametrize("url", WELL_FORMED)
def test_addresses_and_stores_show_themselves_without_it(url: str) -> None:
    address = parse_address(url)
    assert CANARY in repr([dict(address.login), dict(address.sentinel_login)])
    shown = [address, AsyncTransport(url), BlockingTransport(url), AsyncTransport(address), ONCE]
    for one in shown:
        assert CANARY not in f"{one!r} {one}"


@pytest.mark.parametrize(
    "lent",
    [
        redis.Redis(password=CANARY),
        redis.asyncio.Redis(password=CANARY, username="anna"),
        redis.sentinel.Sentinel([("a", 1)], password=CANARY, sentinel_kwargs={"password": CANARY}).master_for(
            "s"
        ),
        redis.asyncio.RedisCluster("a", 1, password=CANARY),
    ],
    ids=["sync", "asyncio", "sentinel", "cluster"],
)
def test_addresses_of_lent_clients_show_themselves_without_it(lent: Any) -> None:
    address = parse_address(lent)
    assert CANARY in repr(dict(address.login))
    assert CANARY not in f"{address!r} {address} {AsyncTransport(lent)!r}"


MALFORMED = [
    f"http://:{CANARY}@localhost",
    f"redis+other://:{CANARY}@localhost",
    f"redis://:{CANARY}/x@localhost",  # Signs that end the host too early.
    f"redis://:x/{CANARY}@localhost",
    f"redis://:x?{CANARY}=1@localhost",
    f"redis://:x#{CANARY}@localhost",
    f"redis://localhost:{CANARY}",
    f"redis://localhost/{CANARY}",
    f"redis://localhost:99999?password={CANARY}",
    f"redis://:{CANARY}@[::1",
    f"redis://:{CANARY}\u2100@host",
    f"redis://:{CANARY}@localhost?unknown=1",
    f"redis+sentinel://:{CANARY}@localhost",
    f"redis+cluster://:{CANARY}@localhost/3",
    f"unix://:{CANARY}@",
    # Schemes that nobody knows: the rest may hold it anywhere.
    f"redis+sentinal://127.0.0.1:1/m?sentinel_password={CANARY}",
    f"redis-sentinel://{CANARY}@host",
    f"foo://u:{CANARY} x@h",
    f"foo://h?auth={CANARY}",
    f"{CANARY}@localhost:6379",
    f"redis://host?{CANARY}=1",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_an_address_that_cannot_be_read_is_refused_without_it(url: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        parse_address(url)
    assert refused.value.field == "redis"
    assert CANARY not in written(refused.value)


class TestWhateverGoesWrong:
    @pytest.fixture(autouse=True)
    def _nothing_is_logged(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> Iterator[None]:
        with caplog.at_level(logging.DEBUG):
            yield
        shown = capfd.readouterr()
        assert CANARY not in caplog.text + shown.out + shown.err

    @pytest.fixture
    def locked(self, start_valkey: Callable[..., Server]) -> Server:
        server = start_valkey()
        with server.client() as client:
            client.config_set("requirepass", "right")
        return server

    async def assert_fails_without_secret(self, transport: TransportAdapter) -> None:
        for call in (
            transport.run(raw_request("PING")),
            transport.run_blocking(raw_request("BLPOP", "a", 0.01), 0.01),
            transport.connect(),
        ):
            with pytest.raises(TorilError) as raised:
                await call
            assert CANARY not in written(raised.value)
        for outcome in await transport.run_many([raw_request("PING"), raw_request("AUTH", "x")]):
            assert isinstance(outcome, TorilError)
            assert CANARY not in written(outcome)

    @pytest.mark.parametrize("user", ["", "anna"])
    async def test_the_password_is_wrong(self, locked: Server, user: str, open_transport: OpenStore) -> None:
        await self.assert_fails_without_secret(
            open_transport(f"redis://{user}:{CANARY}@127.0.0.1:{locked.port}", ONCE)
        )

    async def test_nobody_listens(self, open_transport: OpenStore) -> None:
        await self.assert_fails_without_secret(
            open_transport(f"redis://:{CANARY}@127.0.0.1:{free_port()}", ONCE)
        )

    async def test_the_socket_does_not_exist(self, open_transport: OpenStore) -> None:
        await self.assert_fails_without_secret(open_transport(f"unix://:{CANARY}@/nowhere/server.sock", ONCE))

    async def test_the_server_speaks_no_tls(self, locked: Server, open_transport: OpenStore) -> None:
        await self.assert_fails_without_secret(
            open_transport(f"rediss://:{CANARY}@127.0.0.1:{locked.port}", ONCE)
        )

    async def test_no_sentinel_answers(self, open_transport: OpenStore) -> None:
        address = f"redis+sentinel://:{CANARY}@127.0.0.1:{free_port()}/s?sentinel_password={CANARY}"
        await self.assert_fails_without_secret(open_transport(address, ONCE))

    async def test_no_node_of_the_cluster_answers(self, open_transport: OpenStore) -> None:
        await self.assert_fails_without_secret(
            open_transport(f"redis+cluster://:{CANARY}@127.0.0.1:{free_port()}", ONCE)
        )
