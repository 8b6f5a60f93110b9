"""Reading many jobs at once, for tables: ids first, then hashes.

Guarantee: the moving states are listed in one step of the server, so a job that moves is neither listed twice
nor left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from toril.commands.command import Command, Replay, Reply, call, plain
from toril.commands.library import official
from toril.protocol.keys import QueueKeys

_WIRE_NAME = {"waiting": "wait"}


def ids_by_state(keys: QueueKeys, states: Sequence[str]) -> Command[dict[str, list[bytes]]]:
    """Returns the ids of jobs by state, all of one moment."""
    names = [_WIRE_NAME.get(state, state) for state in states]
    decode = functools.partial(_ids_by_state, list(states))
    return call(official("getRanges"), (keys.base,), [0, -1, "1", *names], decode, Replay.SAFE)


def _ids_by_state(states: Sequence[str], reply: list[list[bytes]]) -> dict[str, list[bytes]]:
    # BullMQ before version 5 put markers such as "0:1700000000000" among the waiting jobs.
    return {
        state: [one for one in ids if not one.startswith(b"0:")]
        for state, ids in zip(states, reply, strict=True)
    }


def finished_ids(key: str, lowest: str, highest: str, count: int) -> Command[list[tuple[bytes, bytes]]]:
    """Returns a page of (id, score) of a set of finished jobs, in the order of finishing."""
    args = ("ZRANGEBYSCORE", key, lowest, highest, "WITHSCORES", "LIMIT", 0, count)
    return plain(_pairs, *args)


def _pairs(reply: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(reply[::2], reply[1::2], strict=True))


def job_hash(key: str) -> Command[dict[bytes, bytes]]:
    """Returns a job's fields as stored; empty when it does not exist."""
    return plain(_fields, "HGETALL", key)


def _fields(reply: Reply) -> dict[bytes, bytes]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def all_lines(key: str) -> Command[list[bytes]]:
    """Returns a whole list: the log lines of a job, or the envelopes of a list queue."""
    return plain(list, "LRANGE", key, 0, -1)


def list_page(key: str, start: int, count: int) -> Command[list[bytes]]:
    """Returns part of a list, counted from its head."""
    return plain(list, "LRANGE", key, start, start + count - 1)
