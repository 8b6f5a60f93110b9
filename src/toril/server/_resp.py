"""Just enough of the Redis protocol to greet the server: one command, one reply, by hand.

Guarantee: no client library is loaded, and no call takes longer than its time-out per read.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path


class ErrorReply(Exception):
    """The server answered with an error."""


def call(server_socket: Path, *words: str, timeout: float = 1.0) -> str:
    """The reply to one command, as text. Raises OSError when nobody answers, ErrorReply when the server refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(server_socket))
        connection.sendall(encode(*words))
        with connection.makefile("rb") as replies:
            return decode(replies.readline(), replies.read)


def info(server_socket: Path, section: str) -> dict[str, str]:
    """One section of what the server says of itself. Raises like `call`."""
    lines = call(server_socket, "INFO", section).splitlines()
    return dict(line.partition(":")[::2] for line in lines)


def is_ready(server_socket: Path) -> bool:
    """Whether the server answers PING. While it loads its data it refuses, and is not ready."""
    try:
        return call(server_socket, "PING") == "PONG"
    except (OSError, ErrorReply):
        return False


def encode(*words: str) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        raw = word.encode()
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
