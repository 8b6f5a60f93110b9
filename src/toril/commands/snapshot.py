"""Reading many jobs at once, for tables: ids first, then whole hashes.

Guarantee: the moving states are listed in one step of the server, so a job that moves is neither listed twice
nor left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from toril.commands.command import Command, Replay, call, plain
from toril.commands.library import official
from toril.protocol.keys import QueueKeys

_WIRE_NAME = {"waiting": "wait"}


def ids_by_state(keys: QueueKeys, states: Sequence[str]) -> Command[dict[str, list[bytes]]]:
    """State → ids of the jobs in it, all of one moment."""
    names = [_WIRE_NAME.get(state, state) for state in states]
    decode = functools.partial(_ids_by_state, list(states))
    return call(official("getRanges"), (keys.base,), [0, -1, "1", *names], decode, Replay.SAFE)


def _ids_by_state(states: Sequence[str], reply: list[list[bytes]]) -> dict[str, list[bytes]]:
    # Old versions left markers such as "0:1700000000000" among the waiting jobs.
    return {
        state: [one for one in ids if not one.startswith(b"0:")]
        for state, ids in zip(states, reply, strict=True)
    }


def finished_ids(key: str, lowest: str, highest: str, count: int) -> Command[list[tuple[bytes, bytes]]]:
    """A page of (id, score) of a set of finished jobs, in the order of finishing."""
    words = ("ZRANGEBYSCORE", key, lowest, highest, "WITHSCORES", "LIMIT", 0, count)
    return plain(_pairs, *words)


def _pairs(reply: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(reply[::2], reply[1::2], strict=True))


def job_hash(key: str) -> Command[dict[bytes, bytes]]:
    """A job's fields as stored; empty when it is gone."""
    return plain(_fields, "HGETALL", key)


def _fields(reply: Any) -> dict[bytes, bytes]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def all_lines(key: str) -> Command[list[bytes]]:
    """A whole list: the log lines of a job, or the envelopes of a list queue."""
    return plain(list, "LRANGE", key, 0, -1)


def list_page(key: str, start: int, count: int) -> Command[list[bytes]]:
    """Part of a list, counted from its head."""
    return plain(list, "LRANGE", key, start, start + count - 1)
