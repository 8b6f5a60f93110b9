"""`Offload`: large payloads are stored outside of Redis; the job has a claim check: name, size and SHA-256.

Guarantee: a payload is stored before its job is added, under a name that is used once. What is read is compared with
the claim check. Nothing is removed when a job ends: `remove_older_than` of the store removes by age.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, runtime_checkable

from toril.errors import InvalidOption, UnreadablePayload
from toril.protocol.codecs import Place, Step
from toril.protocol.option_names import knows_its_options
from toril.protocol.option_parts import check_integer

_DEFAULT_MIN_SIZE: Final = 128 * 1024  # bytes: below it, Redis answers sooner than a store


@runtime_checkable
class PayloadStore(Protocol):
    """Where payloads are stored: a folder, or an object store. Its methods block; they are called in threads."""

    def write(self, name: str, content: bytes) -> None:
        """Stores content under a new name. When it returns, every reader finds all of it."""

    def read(self, name: str, max_size: int) -> bytes | None:
        """Returns at most `max_size` + 1 bytes of the content; None if there is none of this name.

        Errors that may pass, such as those of a network, are raised as they are: the job is tried again.
        """


@knows_its_options("a field of Offload")
@dataclass(frozen=True, slots=True)
class Offload:
    """Stores payloads of at least `min_size` bytes in `store`."""

    store: PayloadStore
    min_size: int = _DEFAULT_MIN_SIZE  # bytes, after the other codecs

    name: ClassVar[str] = "offload"
    place: ClassVar[Place] = "offload"

    def __post_init__(self) -> None:
        if not isinstance(self.store, PayloadStore):
            raise InvalidOption("store", f"is a {type(self.store).__name__}", 'give FolderStore("…")')
        check_integer("min_size", self.min_size, 0, 2**40)

    def encode(self, raw: bytes, _context: bytes) -> tuple[bytes, Step] | None:
        if len(raw) < self.min_size:
            return None
        name = uuid.uuid4().hex
        self.store.write(name, raw)
        return b"", {"name": name, "size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    def decode(self, _raw: bytes, step: Step, _context: bytes, max_size: int) -> bytes:
        name = _checked_name(step.get("name"))
        content = self.store.read(name, max_size)
        if content is None:
            raise UnreadablePayload(
                "payload", f"{name} is not in the store", "it was removed, or this is another store"
            )
        if len(content) > max_size:
            remedy = "raise codecs.max_size if it is yours"
            raise UnreadablePayload("payload", f"{name} has more than {max_size} bytes", remedy)
        if hashlib.sha256(content).hexdigest() != step.get("sha256"):
            raise UnreadablePayload("payload", f"{name} was changed in the store", "look at the store")
        return content


def _checked_name(name: object) -> str:
    """A name as `encode` makes it: others could lead out of the store."""
    if not isinstance(name, str) or len(name) != 32 or not set(name) <= set("0123456789abcdef"):
        raise UnreadablePayload("payload", "its name in the store is not valid", "look at the stored job")
    return name
