"""The names and tokens of leases: they follow from what Spark's checkpoint has, so that a replay finds the same."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toril.commands.leases import JOBS_PER_LEASE
from toril.protocol.keys import QueueKeys


@dataclass(frozen=True, slots=True)
class Lease:
    """A chunk of the jobs of one queue."""

    queue: str
    keys: QueueKeys
    name: str
    size: int  # jobs that it takes at most
    first: int  # position of its first job in the micro-batch

    @property
    def token(self) -> str:
        return token_of(self.name)


def token_of(name: str) -> str:
    """The lock token of a lease. The name has a random part, so nobody else can know it."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=digest, version=4))


def leases_of(
    owner: str, nonce: str, shares: Mapping[str, int], keys: Mapping[str, QueueKeys]
) -> Iterator[Lease]:
    """The leases of a micro-batch: for each queue, chunks of its share."""
    for queue, share in shares.items():
        for number, start in enumerate(range(0, share, JOBS_PER_LEASE)):
            name = f"{owner}:{nonce}:{number}"
            yield Lease(queue, keys[queue], name, min(JOBS_PER_LEASE, share - start), start)


def is_of(name: str, owner: str, nonce: str | None = None) -> bool:
    """Whether a lease belongs to an owner, and to one of its micro-batches if that is given."""
    return name.startswith(f"{owner}:" if nonce is None else f"{owner}:{nonce}:")
