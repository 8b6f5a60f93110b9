"""How redis-py's connections are made for us: with its login, TLS and sockets, and without its retries.

Guarantee: every setting that redis-py would choose by itself and that could hurt a worker is set here, in one place.
"""

from __future__ import annotations

from typing import Any

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

TROUBLE = (RedisError, OSError, EOFError, TimeoutError)
# Trouble that no further attempt will end.
DENIAL = (AuthenticationError, AuthorizationError, NoPermissionError)


# What servers answer to SELECT when they have no such database, without the code before it.
_NO_DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")


def not_sent(error: BaseException, database: object) -> NotSent:
    """Why a connection could not be made; its kind tells whether another attempt makes sense."""
    reason = str(error) or type(error).__name__
    if isinstance(error, DENIAL):
        return Denied(reason)
    if isinstance(error, ResponseError) and any(words in reason for words in _NO_DATABASE):
        return NoDatabase(f"the server has no database {database} ({reason})")
    return NotSent(reason)


def _settings(address: Address, policy: ConnectionPolicy, name: str | None, retry: Any) -> dict[str, Any]:
    return {
        **address.login,
        "protocol": 2,  # one form of replies on every server; hiredis reads it fastest
        "socket_connect_timeout": policy.connect_timeout,
        "socket_timeout": policy.command_timeout,
        "retry": retry,  # we retry by meaning, see _conversation
        "health_check_interval": 0,
        "client_name": name,
        "driver_info": DriverInfo(name="toril"),
    }


def _class_and_place(address: Address, node: Node | None, classes: Any) -> tuple[Any, dict[str, Any]]:
    if address.path is not None:
        return classes.UnixDomainSocketConnection, {"path": address.path}
    host, port = node if node is not None else address.nodes[0]
    place = {"host": host, "port": port, "socket_keepalive": True}
    return (classes.SSLConnection if address.tls else classes.Connection), place


def async_connection(address: Address, node: Node | None, policy: ConnectionPolicy, name: str | None) -> Any:
    """A redis-py asyncio connection, not yet connected."""
    retry = redis_asyncio.retry.Retry(NoBackoff(), 0)
    cls, place = _class_and_place(address, node, redis_asyncio.connection)
    return cls(**place, **_settings(address, policy, name, retry))


def blocking_connection(
    address: Address, node: Node | None, policy: ConnectionPolicy, name: str | None
) -> Any:
    """A redis-py blocking connection, not yet connected."""
    cls, place = _class_and_place(address, node, redis.connection)
    return cls(**place, **_settings(address, policy, name, Retry(NoBackoff(), 0)))


def _sentinel_settings(address: Address, policy: ConnectionPolicy, retry: Any) -> dict[str, Any]:
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
    seeds: Any = redis_asyncio.sentinel.Sentinel
    settings = _sentinel_settings(address, policy, redis_asyncio.retry.Retry(NoBackoff(), 0))
    sentinel = seeds(list(address.nodes), sentinel_kwargs=settings)
    try:
        host, port = await sentinel.discover_master(address.service)
    finally:
        await to_the_end(_close_all(sentinel.sentinels))
    return str(host), int(port)


async def _close_all(clients: Any) -> None:
    for client in clients:
        await client.aclose()


def blocking_primary(address: Address, policy: ConnectionPolicy) -> Node:
    """Asks the sentinels which server is the primary now."""
    seeds: Any = Sentinel
    settings = _sentinel_settings(address, policy, Retry(NoBackoff(), 0))
    sentinel = seeds(list(address.nodes), sentinel_kwargs=settings)
    try:
        host, port = sentinel.discover_master(address.service)
    finally:
        for client in sentinel.sentinels:
            client.close()
    return str(host), int(port)


__all__ = [
    "TROUBLE",
    "MasterNotFoundError",
    "async_connection",
    "async_primary",
    "blocking_connection",
    "blocking_primary",
    "not_sent",
]
