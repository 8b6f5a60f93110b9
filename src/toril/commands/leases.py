"""Leases: jobs that are taken as rows, in chunks, under a name that a repeated task knows.

Guarantee: a lease takes jobs once. Asked for again, it returns those of its jobs that it still holds, and takes no
other, as long as it is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toril.commands.command import Command, Replay, Reply, plain
from toril.commands.library import DECLARED, leased
from toril.commands.own_script import OwnScript
from toril.commands.signature import Signature
from toril.commands.worker import FetchReply, Pickup, settle
from toril.protocol.keys import QueueKeys

# Jobs of one lease: a call that takes, renews or reads it stays under 20 ms.
JOBS_PER_LEASE: Final = 500
# An open lease outlives a long outage of its query. A closed one outlives a replay of its micro-batch.
OPEN_MS: Final = 24 * 3_600_000
CLOSED_MS: Final = 3_600_000

DECLARED["parts/lease"] = Signature(
    keys=("active",),
    args=("base", "now_ms", "token", "lock_ms"),
    last_keys=("lease", "leases"),
    last_args=("lease_name", "lease_ms"),
)
_RENEW = OwnScript("lease_renew", keys="lease stalled active", args="base token lock_ms lease_ms")
_FIELDS = OwnScript("outcome_fields", keys="active", args="base", each="job_id")
# What the outcome of an attempt depends on, in the order of the script.
OUTCOME_FIELDS: Final = (b"opts", b"atm", b"attemptsMade", b"stacktrace")
_CLOSE = OwnScript("lease_close", keys="lease leases", args="lease_name lease_ms")


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job of a lease."""

    job_id: str
    started: str  # `ats` when it was taken


def lease_key(keys: QueueKeys, name: str) -> str:
    return keys.toril(f"work:{name}")


def leases_key(keys: QueueKeys) -> str:
    """The sorted set of leases of a queue that are not closed."""
    return keys.toril("work:leases")


def given_back_key(keys: QueueKeys, token: str) -> str:
    """Exists for a while after jobs of a lease were given back or failed because their rows were dropped."""
    return keys.toril(f"work:given-back:{token}")


def note_given_back(keys: QueueKeys, token: str) -> Command[bool]:
    """Notes that a lease was closed while it held jobs: rows of it that come later are those of a stateful query."""
    return plain(bool, "SET", given_back_key(keys, token), "1", "PX", CLOSED_MS)


def was_given_back(keys: QueueKeys, token: str) -> Command[bool]:
    return plain(bool, "EXISTS", given_back_key(keys, token))


def take_leased(
    keys: QueueKeys, name: str, *, capacity: int, pickup: Pickup, now_ms: int
) -> Command[FetchReply]:
    """Takes up to `capacity` jobs under a lease, or returns those that the lease still holds."""
    command = settle(keys, [], capacity=capacity, pickup=pickup, now_ms=now_ms, has_group_limits=True)
    return Command(
        (*command.args, name, OPEN_MS),
        command.decode,
        leased("settle"),
        (*command.keys, lease_key(keys, name), leases_key(keys)),
        Replay.SAFE,
    )


def renew_lease(keys: QueueKeys, name: str, token: str, *, lock_ms: int) -> Command[int]:
    """Renews the locks of a lease; returns the number of jobs that it still holds."""
    args = _RENEW.args(base=keys.base, token=token, lock_ms=lock_ms, lease_ms=OPEN_MS)
    script_keys = _RENEW.keys(keys, lease=lease_key(keys, name))
    return _RENEW.call(script_keys, args, int, Replay.SAFE)


def close_lease(keys: QueueKeys, name: str) -> Command[bool]:
    """Closes a lease that holds no job any more; returns False when it was closed before."""
    args = _CLOSE.args(lease_name=name, lease_ms=CLOSED_MS)
    return _CLOSE.call((lease_key(keys, name), leases_key(keys)), args, bool, Replay.SAFE)


def open_leases(keys: QueueKeys) -> Command[list[str]]:
    """The names of the leases of a queue that are not closed, oldest first."""
    return plain(_names, "ZRANGE", leases_key(keys), 0, -1)


def jobs_of(keys: QueueKeys, name: str) -> Command[list[LeasedJob]]:
    """The jobs that a lease has taken, in order."""
    return plain(_jobs, "LRANGE", lease_key(keys, name), 1, -1)


def outcome_fields(keys: QueueKeys, job_ids: Sequence[str]) -> Command[list[dict[bytes, bytes]]]:
    """The fields of jobs that their outcomes depend on, as far as they exist."""
    args = [*_FIELDS.args(base=keys.base), *job_ids]
    return _FIELDS.call(_FIELDS.keys(keys), args, _fields, Replay.SAFE)


def _fields(reply: Sequence[Sequence[bytes | None]]) -> list[dict[bytes, bytes]]:
    return [
        {name: value for name, value in zip(OUTCOME_FIELDS, values, strict=False) if value is not None}
        for values in reply
    ]


def _names(reply: Sequence[bytes]) -> list[str]:
    return [one.decode() for one in reply]


def _jobs(reply: Sequence[Reply]) -> list[LeasedJob]:
    parts = [one.decode().partition(":") for one in reply]
    return [LeasedJob(job_id, started) for started, _, job_id in parts]
