"""The bytes that are sent to the server and to the supervisor."""

from __future__ import annotations

import io

import pytest

from toril.server import _resp
from toril.server._control import LineReader, encode


@pytest.mark.parametrize(
    ("raw", "reply"),
    [(b"+PONG\r\n", "PONG"), (b":12\r\n", "12"), (b"$5\r\na\r\nbc\r\n", "a\r\nbc"), (b"$0\r\n\r\n", "")],
)
def test_replies_are_read_as_text(raw: bytes, reply: str) -> None:
    stream = io.BytesIO(raw)
    assert _resp.decode(stream.readline(), stream.read) == reply


def test_an_error_reply_is_an_error() -> None:
    with pytest.raises(_resp.ErrorReply, match="LOADING"):
        _resp.decode(b"-LOADING the dataset\r\n", io.BytesIO().read)


@pytest.mark.parametrize("torn", [b"", b"+PO"])
def test_a_torn_reply_is_a_lost_connection(torn: bytes) -> None:
    with pytest.raises(ConnectionError):
        _resp.decode(torn, io.BytesIO().read)


def test_commands_are_counted_in_bytes() -> None:
    assert _resp.encode("SET", "ü") == b"*2\r\n$3\r\nSET\r\n$2\r\n\xc3\xbc\r\n"


def test_messages_arrive_whole_however_they_are_cut() -> None:
    stream = encode({"want": "status"}) + encode({"want": "stop"})
    reader = LineReader()
    assert [message for byte in stream for message in reader.feed(bytes([byte]))] == [
        {"want": "status"},
        {"want": "stop"},
    ]
