"""The identity of a row: its job id, the columns of `key`, or its content.

Guarantee: a row that is known by its id, its key or its counted content is known in every partition. A row that is
known by its content alone is known within the partition that holds it: equal rows of one task are numbered,
and those of other tasks are different rows.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from toril.errors import InvalidOption
from toril.spark.sinks.options import SinkOptions

# Added by `toril.spark.enqueue`: a hash of the row; rows that have the same are in the same partition.
CONTENT_COLUMN: Final = "_toril_content"


def known_by(options: SinkOptions) -> str:
    """How the rows of a write are known; a run whose rows were known otherwise cannot be compared."""
    if options.key:
        return f"key {','.join(options.key)}"
    return "counted content" if options.counted else "content"


class Identity(NamedTuple):
    """The digest of a row, the digest of its first equal in the task (None: it needs none), and an id for its job."""

    digest: bytes
    first: bytes | None
    job_id: str


@dataclass(slots=True)
class Identifier:
    """Identifies the rows of one task."""

    options: SinkOptions
    run: str
    partition: int
    _run_key: bytes = b""
    _seen: Counter[bytes] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._run_key = hashlib.blake2b(self.run.encode(), digest_size=32).digest()

    def of(self, fields: Mapping[str, Any], content: bytes, content_hash: str | None) -> Identity:
        """How this row is known; `content_hash` is that of the shuffle, for rows that came through it."""
        if self.options.key:
            return self._by_itself(b"key\0%s\0%s" % (_queue(fields), self._key(fields)))
        if job_id := fields.get("job_id"):
            return self._by_itself(b"id\0%s\0%s" % (_queue(fields), str(job_id).encode(errors="replace")))
        if content_hash is not None:
            digest = self._digest(content_hash.encode())
            return self._by_itself(b"n\0%d\0%s" % (self._number(digest), digest))
        return self._within_the_task(self._digest(content))

    def reject_without_key(self, content: bytes) -> Identity:
        """A row that lacks its key: it is a reject, known by its content."""
        return self._by_itself(b"reject\0%s" % content)

    def _within_the_task(self, digest: bytes) -> Identity:
        number = self._number(digest)
        own = digest if number == 1 else self._digest(b"%d\0%s" % (number, digest))
        # Equal rows of different partitions share the digest and are different jobs.
        place = int.from_bytes(own[12:]) ^ self.partition
        job_id = UUID(bytes=own[:12] + place.to_bytes(4), version=5)
        return Identity(own, b"" if number == 1 else digest, str(job_id))

    def _by_itself(self, words: bytes) -> Identity:
        digest = self._digest(words)
        return Identity(digest, None, str(UUID(bytes=digest, version=5)))

    def _digest(self, words: bytes) -> bytes:
        return hashlib.blake2b(words, digest_size=16, key=self._run_key).digest()

    def _number(self, digest: bytes) -> int:
        self._seen[digest] += 1
        return self._seen[digest]

    def _key(self, fields: Mapping[str, object]) -> bytes:
        values = [_value_at(fields, path) for path in self.options.key]
        if all(value is None for value in values):
            raise InvalidOption(
                "key", f"{', '.join(self.options.key)} is null", "give each row a key, or filter it"
            )
        return canonical(values)


def _queue(fields: Mapping[str, Any]) -> bytes:
    return str(fields.get("queue") or "").encode(errors="replace")


def _value_at(fields: Mapping[str, object], path: str) -> object:
    """The value of a column, or of a part of a struct: `data.id`."""
    if path in fields:
        return fields[path]
    value: object = fields
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def canonical(value: object) -> bytes:
    """The same text for the same value, whatever order its parts are in."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
        return json.dumps(value, default=_as_text, sort_keys=True).encode(errors="replace")


def _as_text(value: object) -> str:
    return (
        value.isoformat()
        if isinstance(value, (date, datetime))
        else str(Decimal(value))
        if isinstance(value, Decimal)
        else repr(value)
    )
