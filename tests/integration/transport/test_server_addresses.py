"""Every kind of address leads to its server, and every kind of server is spoken to alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import TlsServer
from tests.integration.transport.conftest import OpenStore
from tests.integration.transport.transport_adapters import (
    PATIENT,
    TransportAdapter,
    add_to,
    echo,
    get,
    put,
    raw_request,
)
from tests.servers import Server, ValkeyCluster, ValkeySentinel, make_certificates
from toril.errors import AccessDenied, Closed, RedisUnavailable


async def assert_speaks(transport: TransportAdapter, key: str) -> None:
    """A plain command, a script, a pipeline and a blocking read."""
    await transport.run(put(key, "1"))
    assert await transport.run(add_to(key, 2)) == 3
    replies = await transport.run_many([get(key), add_to(key), echo(key, "hello"), raw_request("LLEN", key)])
    assert replies[:3] == [b"3", 4, b"hello"]
    assert isinstance(replies[3], Exception)
    assert "WRONGTYPE" in str(replies[3])
    assert await transport.run_blocking(raw_request("BLPOP", f"{key}:list", 0.01), 0.01) is None
    assert abs(await transport.now_ms() - (await server_ms(transport))) < 1000


async def server_ms(transport: TransportAdapter) -> int:
    seconds, micro = await transport.run(raw_request("TIME"))
    return int(seconds) * 1000 + int(micro) // 1000


async def test_one_server(server: Server, prefix: str, open_transport: OpenStore) -> None:
    transport = open_transport(server.url)
    await assert_speaks(transport, f"{prefix}:a")
    assert not transport.transport.is_cluster


async def test_a_unix_socket(valkey: Server, prefix: str, open_transport: OpenStore) -> None:
    await assert_speaks(open_transport(valkey.socket_url), f"{prefix}:a")


async def test_another_database(valkey: Server, prefix: str, open_transport: OpenStore) -> None:
    await assert_speaks(open_transport(f"{valkey.url}/3"), f"{prefix}:a")
    assert await open_transport(valkey.url).run(get(f"{prefix}:a")) is None
    assert await open_transport(f"{valkey.socket_url}?db=3").run(get(f"{prefix}:a")) == b"4"


async def test_a_cluster(cluster: ValkeyCluster, prefix: str, open_transport: OpenStore) -> None:
    transport = open_transport(cluster.url)
    assert transport.transport.is_cluster
    for number in range(8):
        await assert_speaks(transport, f"{prefix}:{{{number}}}:a")


async def test_a_pipeline_reaches_all_nodes_of_a_cluster(
    cluster: ValkeyCluster, prefix: str, open_transport: OpenStore
) -> None:
    transport = open_transport(cluster.url)
    keys = [f"{prefix}:{number}" for number in range(60)]
    await transport.run_many([put(key, key) for key in keys])
    assert await transport.run_many([get(key) for key in keys]) == [key.encode() for key in keys]
    assert await transport.run_many([echo(key, key) for key in keys]) == [key.encode() for key in keys]


async def test_one_seed_of_a_cluster_is_enough(
    cluster: ValkeyCluster, prefix: str, open_transport: OpenStore
) -> None:
    transport = open_transport(f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.nodes[2].port}", PATIENT)
    await assert_speaks(transport, f"{prefix}:a")


async def test_a_service_that_sentinels_know(
    sentinel: ValkeySentinel, prefix: str, open_transport: OpenStore
) -> None:
    await assert_speaks(open_transport(sentinel.url), f"{prefix}:a")


async def test_a_service_that_no_sentinel_knows(sentinel: ValkeySentinel, open_transport: OpenStore) -> None:
    transport = open_transport(sentinel.url.replace("toril-primary", "nobody"))
    with pytest.raises(RedisUnavailable, match="nobody"):
        await transport.run(raw_request("PING"))


async def test_an_embedded_server(prefix: str, tmp_path: Path, open_transport: OpenStore) -> None:
    transport = open_transport(f"embedded:{tmp_path}")
    await assert_speaks(transport, f"{prefix}:a")
    await transport.close()


async def test_many_callers_lease_one_embedded_server(
    prefix: str, tmp_path: Path, open_transport: OpenStore
) -> None:
    transport = open_transport(f"embedded:{tmp_path}")
    assert await asyncio.gather(*(transport.run(echo(prefix, str(n))) for n in range(20))) == [
        str(n).encode() for n in range(20)
    ]


class TestTls:
    async def test_the_right_authority_is_accepted(
        self, redis7_tls: TlsServer, prefix: str, open_transport: OpenStore
    ) -> None:
        await assert_speaks(
            open_transport(f"{redis7_tls.url}?ssl_ca_certs={redis7_tls.authority}"), f"{prefix}:a"
        )

    async def test_another_authority_is_refused(
        self, redis7_tls: TlsServer, tmp_path: Path, open_transport: OpenStore
    ) -> None:
        other_authority = make_certificates(tmp_path).authority
        with pytest.raises(RedisUnavailable, match=r"(?i)certificate verify failed"):
            await open_transport(f"{redis7_tls.url}?ssl_ca_certs={other_authority}").run(raw_request("PING"))

    async def test_certificates_are_verified_by_default(
        self, redis7_tls: TlsServer, open_transport: OpenStore
    ) -> None:
        with pytest.raises(RedisUnavailable, match=r"(?i)certificate verify failed"):
            await open_transport(redis7_tls.url).run(raw_request("PING"))
        careless = f"{redis7_tls.url}?ssl_cert_reqs=none&ssl_check_hostname=false"
        assert await open_transport(careless).run(raw_request("PING")) in (b"PONG", "PONG")

    async def test_the_name_of_the_host_is_verified(
        self, redis7_tls: TlsServer, open_transport: OpenStore
    ) -> None:
        # The certificate names localhost and 127.0.0.1, not 127.0.0.2, though both lead to the same server.
        url = f"rediss://127.0.0.2:{redis7_tls.port}?ssl_ca_certs={redis7_tls.authority}"
        with pytest.raises(RedisUnavailable):
            await open_transport(url).run(raw_request("PING"))

    async def test_large_values_pass(
        self, redis7_tls: TlsServer, prefix: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(f"{redis7_tls.url}?ssl_ca_certs={redis7_tls.authority}")
        value = b"x" * 10_000_000
        await transport.run(put(f"{prefix}:a", value))
        assert await transport.run(get(f"{prefix}:a")) == value

    async def test_a_plain_address_of_a_tls_port_is_an_error_and_no_hang(
        self, redis7_tls: TlsServer, open_transport: OpenStore
    ) -> None:
        with pytest.raises(RedisUnavailable):
            await open_transport(f"redis://localhost:{redis7_tls.port}").run(raw_request("PING"))


class TestALogin:
    @pytest.fixture
    def locked(self, start_valkey: Callable[..., Server]) -> Server:
        server = start_valkey()
        with server.client() as client:
            client.acl_setuser(
                "anna", enabled=True, passwords=["+pa:ss/wo@rd"], keys=["*"], categories=["+@all"]
            )
            client.acl_setuser("bob", enabled=True, passwords=["+b"], keys=["mine:*"], commands=["+get"])
            client.config_set("requirepass", "s3cret")
        return server

    async def test_with_a_password_is_let_in(
        self, locked: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        await assert_speaks(open_transport(f"redis://:s3cret@127.0.0.1:{locked.port}"), f"{prefix}:a")

    async def test_with_a_name_is_let_in(
        self, locked: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        address = f"redis://anna:pa%3Ass%2Fwo%40rd@127.0.0.1:{locked.port}"
        await assert_speaks(open_transport(address), f"{prefix}:a")

    async def test_by_a_socket_is_let_in(
        self, locked: Server, prefix: str, open_transport: OpenStore
    ) -> None:
        await assert_speaks(open_transport(f"unix://:s3cret@{locked.socket_path}"), f"{prefix}:a")

    @pytest.mark.parametrize("who", [":wrong", "anna:wrong", "nobody:s3cret"])
    async def test_with_a_wrong_password_is_refused_at_once(
        self, locked: Server, who: str, open_transport: OpenStore
    ) -> None:
        transport = open_transport(f"redis://{who}@127.0.0.1:{locked.port}")
        with pytest.raises(AccessDenied, match="check user and password"):
            await transport.run(raw_request("PING"))

    async def test_that_is_missing_is_said(self, locked: Server, open_transport: OpenStore) -> None:
        with pytest.raises(AccessDenied):
            await open_transport(locked.url).run(raw_request("PING"))

    async def test_without_the_right_to_a_command_is_said(
        self, locked: Server, open_transport: OpenStore
    ) -> None:
        transport = open_transport(f"redis://bob:b@127.0.0.1:{locked.port}")
        with pytest.raises(AccessDenied):
            await transport.run(put("mine:a", "1"))


async def test_a_closed_store_says_so(valkey: Server, open_transport: OpenStore) -> None:
    transport = open_transport(valkey.url)
    await transport.run(raw_request("PING"))
    await transport.close()
    with pytest.raises(Closed, match="was closed"):
        await transport.run(raw_request("PING"))


async def test_closing_twice_is_no_error(valkey: Server, open_transport: OpenStore) -> None:
    transport = open_transport(valkey.url)
    await transport.connect()
    await transport.close()
    await transport.close()
    with pytest.raises(Closed):
        await transport.run(raw_request("PING"))


async def test_a_client_is_named(valkey: Server, open_transport: OpenStore) -> None:
    transport = open_transport(valkey.url, name="bull:cGFpbnQ=:w:w1")
    assert await transport.run(raw_request("CLIENT", "GETNAME")) == b"bull:cGFpbnQ=:w:w1"
