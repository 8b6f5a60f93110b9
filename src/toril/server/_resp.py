"""A minimal Redis client for the supervisor: one connection, one command, one reply.

Guarantee: no client library is loaded, and no read takes longer than the time-out.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class ErrorReply(Exception):
    """The server answered with an error."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server answers, and its password if it has one."""

    socket: Path
    password: str | None = None


def call(place: Place, *arguments: str, timeout: float = 1.0) -> str:
    """Returns the reply to one command, as text. Raises OSError without a connection, ErrorReply for an error reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(place.socket))
        login = () if place.password is None else (("AUTH", place.password),)
        with connection.makefile("rb") as replies:
            for words in login:
                connection.sendall(encode(*words))
                decode(replies.readline(), replies.read)
            connection.sendall(encode(*arguments))
            return decode(replies.readline(), replies.read)


def info(place: Place, section: str) -> dict[str, str]:
    """Returns one section of INFO. Raises like `call`."""
    lines = call(place, "INFO", section).splitlines()
    return dict(line.partition(":")[::2] for line in lines)


def is_ready(place: Place) -> bool:
    """Returns whether the server answers PING. It does not while it loads its data."""
    try:
        return call(place, "PING") == "PONG"
    except (OSError, ErrorReply):
        return False


def encode(*arguments: str) -> bytes:
    parts = [f"*{len(arguments)}\r\n".encode()]
    for argument in arguments:
        raw = argument.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(parts)


def decode(line: bytes, read: Callable[[int], bytes]) -> str:
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise ErrorReply(rest.decode(errors="replace"))
    if kind == b"$":
        return read(int(rest) + 2)[:-2].decode(errors="replace")
    return rest.decode(errors="replace")
