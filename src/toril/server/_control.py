"""The protocol between users and their supervisor: lines of JSON over a unix socket.

    user                                                supervisor
    {"want": "lease", "pid": …, "port": …, "fsync": …}  {"ready": facts}  once the server answers, or {"failed": …}
    {"want": "status"}                                  {"status": …}
    {"want": "watch"}                                   {"status": …}  now and whenever the users change
    {"want": "unsaved"}                                 {"unsaved": reason or null, "users": number}
    {"want": "stop"}                                    nothing: the connection closes when the server has ended
                                                        {"stopping": true}  to users: do not start it again
    anything else                                       {"failed": …}  other users are not affected

Guarantee: a connection that requested a lease is a user until the kernel closes it. A supervisor that closes a
connection without a reply is ending: the user asks again, and finds or starts the next supervisor.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

Message = dict[str, Any]

# Increased when the messages change in a way that an older or newer toril cannot read.
PROTOCOL = 2


# Messages have some hundred bytes, and a little more for each user.
_LONGEST_LINE = 1_000_000


class LineReader:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        """Returns the messages that are complete. Raises ValueError for anything else."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise ValueError("a line is too long")
        return [_message(line) for line in lines if line]


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("a message is not an object")  # noqa: TRY004 - callers handle one kind of error
    return message


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class ControlConnection:
    """The user's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._reader = LineReader()
        self._pending: list[Message] = []

    @classmethod
    def open(cls, control_socket: Path) -> ControlConnection | None:
        """Connects to the supervisor; returns None if there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(control_socket))
        except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def request(self, message: Message, seconds: float) -> Message | None:
        """Returns the reply, or None if the supervisor closed the connection. Raises TimeoutError."""
        try:
            self.socket.settimeout(max(seconds, 0.001))
            self.socket.sendall(encode({"protocol": PROTOCOL, **message}))
        except (BrokenPipeError, ConnectionResetError):
            return None
        return self.receive(seconds)

    def receive(self, seconds: float) -> Message | None:
        """Returns the next message, or None if the supervisor closed the connection. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while not self._pending:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            if not self._read_socket():
                return None
        return self._pending.pop(0)

    def close(self) -> None:
        # Only close, never shutdown(): a forked child may have the same connection and still be a user.
        self.socket.close()

    def _read_socket(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        try:
            self._pending += self._reader.feed(data)
        except ValueError as error:
            raise ConnectionError(f"the program that listens there is no supervisor ({error})") from None
        return bool(data)
