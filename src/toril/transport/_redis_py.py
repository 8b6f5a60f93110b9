"""What redis-py does: blocking connections, TLS settings and questions to sentinels, without its retries.

Guarantee: every setting that redis-py would choose by itself and that could disturb a worker is set here. redis-py
takes long to import: asyncio connections without TLS and sentinels do not import this module.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

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

from toril.errors import InvalidOption
from toril.transport._retry_protocol import Denied, NoDatabase, NotSent
from toril.transport.address import Address, Node
from toril.transport.policy import ConnectionPolicy
from toril.transport.waiting import to_the_end

CONNECTION_ERRORS = (RedisError, OSError, EOFError, TimeoutError)
# Errors that another attempt does not change.
_DENIALS = (AuthenticationError, AuthorizationError, NoPermissionError)

# What servers reply to SELECT when they have no such database, without the error code.
_NO_DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")

_Settings: TypeAlias = dict[str, Any]  # keyword arguments of redis-py


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


def _class_and_endpoint(address: Address, node: Node | None) -> tuple[Any, _Settings]:
    classes: Any = redis.connection
    if address.path is not None:
        return classes.UnixDomainSocketConnection, {"path": address.path}
    host, port = node if node is not None else address.nodes[0]
    endpoint = {"host": host, "port": port, "socket_keepalive": True}
    return (classes.SSLConnection if address.tls else classes.Connection), endpoint


def tls_context(login: Mapping[str, Any]) -> ssl.SSLContext:
    """Returns the TLS context for the `ssl_…` settings of an address, with redis-py's defaults: verified."""
    settings = {name: value for name, value in login.items() if name.startswith("ssl_")}
    try:
        context: ssl.SSLContext = redis_asyncio.SSLConnection(**settings).ssl_context.get()
    except RedisError as error:
        raise InvalidOption(
            "redis", f"has TLS settings that fail: {error}", "see the ssl_ parameters"
        ) from None
    return context


def blocking_connection(
    address: Address, node: Node | None, policy: ConnectionPolicy, name: str | None
) -> BlockingRedisConnection:
    """Returns a redis-py blocking connection, not yet connected."""
    cls, endpoint = _class_and_endpoint(address, node)
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
    """Asks the sentinels which server is the primary now; raises `NotSent` when none knows."""
    settings = _sentinel_settings(address, policy, redis_asyncio.retry.Retry(NoBackoff(), 0))
    sentinel_class: Any = redis_asyncio.sentinel.Sentinel
    sentinel = sentinel_class(list(address.nodes), sentinel_kwargs=settings)
    try:
        host, port = await sentinel.discover_master(address.service)
    except CONNECTION_ERRORS as error:
        raise NotSent(f"no sentinel knows the primary of {address.service!r}: {error}") from error
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
    "BlockingRedisConnection",
    "MasterNotFoundError",
    "async_primary",
    "blocking_connection",
    "blocking_primary",
    "not_sent",
    "tls_context",
]
