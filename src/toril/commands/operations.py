"""Operations of a dashboard on many jobs: what they do, how far they are, and who runs them.

    <prefix>:toril:operations           sorted set: operation → when it began (ms)
    <prefix>:toril:operation:<id>       hash: what it does and how far it is; kept for a week
    <prefix>:toril:operation:<id>:alive the process that runs it; expires when that process dies

Guarantee: one process runs an operation at a time: the key `alive` is set only if there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from toril.commands.command import Command, Replay, Reply, plain

KEPT_MS: Final = 7 * 86_400_000
# An operation whose process did not renew it for so long was interrupted.
ALIVE_MS: Final = 6_000
MOST_KEPT: Final = 500


def _index(prefix: str) -> str:
    return f"{prefix}:toril:operations"


def _hash(prefix: str, operation_id: str) -> str:
    return f"{prefix}:toril:operation:{operation_id}"


def save_operation(
    prefix: str, operation_id: str, fields: Mapping[str, str], now_ms: int
) -> tuple[Command[int], ...]:
    """Stores a new operation and forgets the oldest ones."""
    words = [word for pair in fields.items() for word in pair]
    key = _hash(prefix, operation_id)
    return (
        plain(int, "HSET", key, *words),
        plain(int, "PEXPIRE", key, KEPT_MS),
        plain(int, "ZADD", _index(prefix), now_ms, operation_id),
        plain(int, "ZREMRANGEBYSCORE", _index(prefix), "-inf", now_ms - KEPT_MS),
        plain(int, "ZREMRANGEBYRANK", _index(prefix), 0, -MOST_KEPT - 1),
    )


def update_operation(
    prefix: str, operation_id: str, runner: str, fields: Mapping[str, str]
) -> tuple[Command[int], Command[str | None], Command[bool]]:
    """Stores how far an operation is, returns whether it is to be cancelled, and renews its process."""
    words = [word for pair in fields.items() for word in pair]
    key = _hash(prefix, operation_id)
    return (
        plain(int, "HSET", key, *words),
        plain(_text, "HGET", key, "cancel"),
        plain(bool, "SET", f"{key}:alive", runner, "PX", ALIVE_MS),
    )


def claim_operation(prefix: str, operation_id: str, runner: str) -> Command[bool]:
    """Makes this process the one that runs the operation; returns False if another does."""
    key = f"{_hash(prefix, operation_id)}:alive"
    return plain(
        lambda reply: reply is not None, "SET", key, runner, "NX", "PX", ALIVE_MS, replay=Replay.NEVER
    )


def release_operation(prefix: str, operation_id: str) -> Command[int]:
    return plain(int, "DEL", f"{_hash(prefix, operation_id)}:alive")


def set_cancel(prefix: str, operation_id: str, wanted: bool) -> Command[int]:
    """Asks the process that runs an operation to end it, or withdraws that."""
    return plain(int, "HSET", _hash(prefix, operation_id), "cancel", "1" if wanted else "")


def list_operations(prefix: str, count: int) -> Command[list[str]]:
    """Returns ids, newest first."""
    return plain(_texts, "ZREVRANGE", _index(prefix), 0, count - 1)


def get_operation(prefix: str, operation_id: str) -> tuple[Command[dict[str, str]], Command[int]]:
    """Returns the fields of an operation (none: there is no such operation), and whether a process runs it."""
    key = _hash(prefix, operation_id)
    return plain(_fields, "HGETALL", key), plain(int, "EXISTS", f"{key}:alive")


def _text(reply: bytes | None) -> str | None:
    return None if reply is None else reply.decode(errors="replace")


def _texts(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def _fields(reply: Reply) -> dict[str, str]:
    flat = [word for pair in reply.items() for word in pair] if isinstance(reply, Mapping) else list(reply)
    texts = _texts(flat)
    return dict(zip(texts[::2], texts[1::2], strict=True))
