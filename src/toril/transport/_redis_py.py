"""How redis-py's connections are made: with its login, TLS and sockets, and without its retries.

Guarantee: every setting that redis-py would choose by itself and that could disturb a worker is set here. This is the
only module that uses private attributes of redis-py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeAlias, cast

import redis
import redis.asyncio as redis_asyncio
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from toril.transport._retry_protocol import Denied, NoDatabase, NotSent
from toril.transport.address import Address, Node
from toril.transport.policy import ConnectionPolicy
from toril.transport.waiting import to_the_end

CONNECTION_ERRORS = (RedisError, OSError, EOFError, TimeoutError)
# Errors that another attempt does not mend.
_DENIALS = (AuthenticationError, AuthorizationError, NoPermissionError)

# What servers reply to SELECT when they have no such database, without the error code.
_NO_DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")

_Settings: TypeAlias = dict[str, Any]  # keyword arguments of redis-py


class AsyncRedisConnection(Protocol):
    """What is used of redis-py's asyncio connections, which have no type hints of their own."""

    db: object
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter | None

    async def connect(self) -> None: ...
    def _close(self) -> None: ...


class BlockingRedisConnection(Protocol):
    """What is used of redis-py's blocking connections."""

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def send_packed_command(self, command: Sequence[bytes], check_health: bool) -> None: ...
    def read_response(
        self, *, disable_decoding: bool, timeout: float, disconnect_on_error: bool
    ) -> object: ...


def not_sent(error: BaseException, database: object) -> NotSent:
    """Returns why a connection could not be made; the class shows whether another attempt makes sense."""
    reason = str(error) or type(error).__name__
    if isinstance(error, _DENIALS):
        return Denied(reason)
    if isinstance(error, ResponseError) and any(text in reason for text in _NO_DATABASE):
        return NoDatabase(f"the server has no database {database} ({reason})")
    return NotSent(reason)


def _settings(address: Address, policy: ConnectionPolicy, name: str | None, retry: object) -> _Settings:
    return {
        **address.login,
        "protocol": 2,  # one form of replies on every server; hiredis parses it fastest
        "socket_connect_timeout": policy.connect_timeout,
        "socket_timeout": policy.command_timeout,
        "retry": retry,  # the retry protocol decides, see _retry_protocol
        "health_check_interval": 0,
        "client_name": name,
        "driver_info": DriverInfo(name="toril"),
    }


def _class_and_endpoint(address: Address, node: Node | None, classes: ModuleType) -> tuple[Any, _Settings]:
    if address.path is not None:
        return classes.UnixDomainSocketConnection, {"path": address.path}
    host, port = node if node is not None else address.nodes[0]
    endpoint = {"host": host, "port": port, "socket_keepalive": True}
    return (classes.SSLConnection if address.tls else classes.Connection), endpoint


def async_connection(
    address: Address, node: Node | None, policy: ConnectionPolicy, name: str | None
) -> AsyncRedisConnection:
    """Returns a redis-py asyncio connection, not yet connected."""
    retry = redis_asyncio.retry.Retry(NoBackoff(), 0)
    cls, endpoint = _class_and_endpoint(address, node, redis_asyncio.connection)
    made: AsyncRedisConnection = cls(**endpoint, **_settings(address, policy, name, retry))
    return made


def transport_under(connection: AsyncRedisConnection) -> asyncio.Transport | None:
    """Returns the asyncio transport of a connection; None if the server has closed it already.

    redis-py's streams know of the end; asyncio does not report it again to another protocol.
    """
    if connection._writer is None or connection._reader.at_eof():
        return None
    transport = cast("asyncio.Transport", connection._writer.transport)
    return None if transport.is_closing() else transport


def discard(connection: AsyncRedisConnection) -> None:
    """Closes a connection without waiting: redis-py's own `disconnect` could be cancelled half-way."""
    writer = connection._writer
    if writer is not None:
        writer.transport.abort()
    connection._close()


def blocking_connection(
    address: Address, node: Node | None, policy: ConnectionPolicy, name: str | None
) -> BlockingRedisConnection:
    """Returns a redis-py blocking connection, not yet connected."""
    cls, endpoint = _class_and_endpoint(address, node, redis.connection)
    made: BlockingRedisConnection = cls(**endpoint, **_settings(address, policy, name, Retry(NoBackoff(), 0)))
    return made


def _sentinel_settings(address: Address, policy: ConnectionPolicy, retry: object) -> _Settings:
    login = {name: value for name, value in address.sentinel_login.items() if name != "db"}
    if not address.tls:
        login = {name: value for name, value in login.items() if not name.startswith("ssl_")}
    return {
        **login,
        "ssl": address.tls,
        "retry": retry,
        "socket_connect_timeout": policy.connect_timeout,
        "socket_timeout": policy.command_timeout,
    }


async def async_primary(address: Address, policy: ConnectionPolicy) -> Node:
    """Asks the sentinels which server is the primary now."""
    settings = _sentinel_settings(address, policy, redis_asyncio.retry.Retry(NoBackoff(), 0))
    sentinel_class: Any = redis_asyncio.sentinel.Sentinel
    sentinel = sentinel_class(list(address.nodes), sentinel_kwargs=settings)
    try:
        host, port = await sentinel.discover_master(address.service)
    finally:
        await to_the_end(_close_all(sentinel.sentinels))
    return str(host), int(port)


async def _close_all(clients: Iterable[redis_asyncio.Redis]) -> None:
    for client in clients:
        await client.aclose()


def blocking_primary(address: Address, policy: ConnectionPolicy) -> Node:
    """Asks the sentinels which server is the primary now."""
    settings = _sentinel_settings(address, policy, Retry(NoBackoff(), 0))
    sentinel_class: Any = Sentinel
    sentinel = sentinel_class(list(address.nodes), sentinel_kwargs=settings)
    try:
        host, port = sentinel.discover_master(address.service)
    finally:
        for client in sentinel.sentinels:
            client.close()
    return str(host), int(port)


__all__ = [
    "CONNECTION_ERRORS",
    "AsyncRedisConnection",
    "BlockingRedisConnection",
    "MasterNotFoundError",
    "async_connection",
    "async_primary",
    "blocking_connection",
    "blocking_primary",
    "discard",
    "not_sent",
    "transport_under",
]
