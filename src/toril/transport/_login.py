"""How an asyncio connection is opened: the socket, TLS and the login, in one exchange.

Guarantee: an error raised here is a `NotSent` (nothing that the caller gave was sent), and says whether another attempt
makes sense. redis-py is imported only where it does more than this: TLS settings and sentinels.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from toril.transport._error_replies import Fault, ReplyError, fault_of, is_denial
from toril.transport._retry_protocol import Denied, Lost, NoDatabase, NotSent, Reply, Request
from toril.transport.address import Address, Node

if TYPE_CHECKING:
    import ssl

P = TypeVar("P", bound=asyncio.BaseProtocol)

CONNECTION_ERRORS: Final = (OSError, EOFError, TimeoutError)

# What servers reply to SELECT when they have no such database, without the error code.
_NO_DATABASE = ("DB index is out of range", "invalid DB index", "SELECT is not allowed in cluster mode")

# Servers before Redis 7.2 do not know it, and a user of an ACL may not be allowed to: neither matters.
_LIBRARY: Final[Request] = ("CLIENT", "SETINFO", "LIB-NAME", "toril")


async def open_socket(
    address: Address, node: Node | None, protocol: Callable[[], P], timeout: float
) -> tuple[asyncio.Transport, P]:
    """Connects to a server, without the login."""
    try:
        async with asyncio.timeout(timeout):
            return await _opened(address, node, protocol)
    except TimeoutError as error:
        raise NotSent(f"{_place(address, node)} did not answer within {timeout:g} s") from error
    except CONNECTION_ERRORS as error:
        raise NotSent(f"{_place(address, node)} cannot be reached: {_reason(error)}") from error


async def _opened(
    address: Address, node: Node | None, protocol: Callable[[], P]
) -> tuple[asyncio.Transport, P]:
    loop = asyncio.get_running_loop()
    if address.path is not None:
        return await loop.create_unix_connection(protocol, address.path)
    host, port = node if node is not None else address.nodes[0]
    transport, made = await loop.create_connection(protocol, host, port, ssl=_tls(address))
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return transport, made


def _tls(address: Address) -> ssl.SSLContext | None:
    if not address.tls:
        return None
    from toril.transport._redis_py import tls_context  # redis-py takes long to import

    return tls_context(address.login)


def _place(address: Address, node: Node | None) -> str:
    if address.path is not None:
        return address.path
    host, port = node if node is not None else address.nodes[0]
    return f"{host}:{port}"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


async def login_requests(address: Address, name: str | None) -> list[Request]:
    """Returns the requests that log in, in their order; what the server replies is for `check_login`."""
    login = address.login
    requests: list[Request] = []
    credentials = await _credentials(login)
    if credentials:
        requests.append(("AUTH", *credentials))
    if name:
        requests.append(("CLIENT", "SETNAME", name))
    requests.append(_LIBRARY)
    if login.get("db"):
        requests.append(("SELECT", str(login["db"])))
    return requests


async def _credentials(login: Any) -> tuple[str, ...]:
    provider = login.get("credential_provider")
    if provider is not None:
        given = provider.get_credentials_async()
        return tuple(await given if inspect.isawaitable(given) else given)
    username, password = login.get("username"), login.get("password")
    if username:
        return (username, password or "")
    return (password,) if password else ()


def check_login(requests: Sequence[Request], replies: Sequence[Reply], database: object) -> None:
    """Raises `NotSent` if the server refused the login or closed the connection during it."""
    refusal = ""  # the first error reply: the reason when the server closes the connection after it
    for request, reply in zip(requests, replies, strict=True):
        if isinstance(reply, (Lost, NotSent)):
            raise NotSent(refusal or str(reply))
        if not isinstance(reply, ReplyError):
            continue
        refusal = refusal or str(reply)
        if request is not _LIBRARY or not _is_unimportant(reply):
            raise _not_sent(str(reply), database)


def _is_unimportant(reply: ReplyError) -> bool:
    """Whether the server takes no name of a library, but may run commands."""
    return str(reply).startswith(("ERR", "NOPERM", "NOAUTH")) and fault_of(reply) is not Fault.LATER


def _not_sent(reason: str, database: object) -> NotSent:
    if is_denial(reason):
        return Denied(reason)
    if any(text in reason for text in _NO_DATABASE):
        return NoDatabase(f"the server has no database {database} ({reason})")
    return NotSent(reason)
