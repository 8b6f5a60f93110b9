"""How asyncio connections log in: what they send, and what they say when the server refuses."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot as key_slot_of_redis_py
from redis.credentials import UsernamePasswordCredentialProvider

from tests.servers import Server
from toril.commands.command import plain
from toril.errors import AccessDenied, RedisUnavailable
from toril.transport import AsyncTransport, ConnectionPolicy
from toril.transport._slots import key_slot

ONCE = ConnectionPolicy(call_attempts=1)


async def client_info(transport: AsyncTransport) -> dict[str, str]:
    text = await transport.run(plain(bytes, "CLIENT", "INFO"))
    return dict(part.split("=", 1) for part in text.decode().split())


async def test_a_connection_has_its_database_user_name_and_library() -> None:
    with Server.valkey() as server:
        async with AsyncTransport(server.url) as admin:
            await admin.run(plain(bytes, "ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all"))
        url = server.url.replace("redis://", "redis://ann:secret@") + "/3"
        async with AsyncTransport(url, name="mails") as transport:
            info = await client_info(transport)
    expected = {"db": "3", "user": "ann", "name": "mails", "lib-name": "toril"}
    assert {name: info[name] for name in expected} == expected


async def test_a_credential_provider_of_a_client_is_asked_for_each_connection() -> None:
    with Server.valkey() as server:
        async with AsyncTransport(server.url) as admin:
            await admin.run(plain(bytes, "ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all"))
        client = Redis.from_url(server.url)
        client.connection_pool.connection_kwargs["credential_provider"] = UsernamePasswordCredentialProvider(
            "ann", "secret"
        )
        async with AsyncTransport(client) as transport:
            assert (await client_info(transport))["user"] == "ann"
        await client.aclose()


async def test_a_wrong_password_is_refused_at_once_with_the_reply_of_the_server() -> None:
    with Server.valkey() as server:
        url = server.url.replace("redis://", "redis://ann:wrong@")
        async with AsyncTransport(url) as transport:
            with pytest.raises(AccessDenied, match="WRONGPASS"):
                await transport.run(plain(bytes, "PING"))


async def test_a_server_with_too_many_clients_is_named_as_the_reason() -> None:
    with Server.valkey(maxclients="1") as server:
        async with AsyncTransport(server.url, policy=ONCE) as first:
            await first.connect()
            async with AsyncTransport(server.url, policy=ONCE) as second:
                with pytest.raises(RedisUnavailable, match="max number of clients"):
                    await second.run(plain(bytes, "PING"))


async def test_a_server_that_closes_after_a_refusal_is_quoted() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-DENIED this server is in protected mode\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, AsyncTransport(f"redis://127.0.0.1:{port}", policy=ONCE) as transport:
        with pytest.raises(RedisUnavailable, match="protected mode"):
            await transport.run(plain(bytes, "PING"))


async def test_an_address_where_nothing_listens_is_named_with_the_reason() -> None:
    async with AsyncTransport("redis://127.0.0.1:1", policy=ONCE) as transport:
        with pytest.raises(RedisUnavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
            await transport.run(plain(bytes, "PING"))


@pytest.mark.parametrize(
    "key", [b"a", b"{tag}:a", b"a{}b", b"a{x", b"{}{y}", b"bull:{q}:1", b"}{z}", b"", bytes(range(256))]
)
def test_the_slot_of_a_key_is_that_of_the_cluster(key: bytes) -> None:
    assert key_slot(key) == key_slot_of_redis_py(key)
