"""The talk between users and their keeper: lines of JSON over a unix socket.

    user                                                keeper
    {"want": "lease", "pid": …, "port": …, "fsync": …}  {"ready": facts}  once the server answers, or {"failed": …}
    {"want": "status"}                                  {"status": …}
    {"want": "watch"}                                   {"status": …}  now and whenever a user comes or goes
    {"want": "farewell"}                                {"unsaved": why or null, "users": how many}
    {"want": "stop"}                                    nothing: the connection closes when the server is down
                                                        {"stopping": true}  to users: it ends on request, let it be
    anything else                                       {"failed": …}  and nothing happens to anybody else

Guarantee: a connection that asked for a lease is a user until the kernel closes it. A keeper that closes a
connection without an answer is on its way out: the user asks again, and finds or starts the next keeper.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

Message = dict[str, Any]

# Raised when the lines above change in a way that an older or newer toril cannot read.
PROTOCOL = 1


# Our own messages have some hundred bytes, and a little more for each user.
_LONGEST_LINE = 1_000_000


class LineReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete by now. Raises ValueError for anything that is none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("a line without an end")
        return [_message(line) for line in lines if line]


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("a message without a bottom") from None
    if not isinstance(message, dict):
        raise ValueError("a message is an object")  # noqa: TRY004 - for readers it is one more kind of garbage
    return message


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Conversation:
    """The user's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = LineReader()
        self._pending: list[Message] = []

    @classmethod
    def open(cls, keeper_socket: Path) -> Conversation | None:
        """A conversation with the keeper, or None if there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(keeper_socket))
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def ask(self, message: Message, seconds: float) -> Message | None:
        """The answer, or None if the keeper hung up. Raises TimeoutError."""
        try:
            self.socket.settimeout(max(seconds, 0.001))
            self.socket.sendall(encode({"protocol": PROTOCOL, **message}))
        except (BrokenPipeError, ConnectionResetError):
            return None
        return self.next(seconds)

    def next(self, seconds: float) -> Message | None:
        """The next message, or None if the keeper hung up. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not self._pending:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            if not self._receive():
                return None
        return self._pending.pop(0)

    def close(self) -> None:
        # Only close, never shutdown(): a forked child may hold the same connection and still be a user.
        self.socket.close()

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        try:
            self._pending += self._reader.feed(data)
        except ValueError as error:
            raise ConnectionError(f"what listens there is no keeper ({error})") from None
        return bool(data)
