"""`AesGcm`: payloads are encrypted and authenticated with AES in Galois/counter mode.

Guarantee: a payload that was changed, or encrypted for another field, is not decrypted. The key is chosen by its id in
the payload, so keys can be replaced while jobs wait. Neither keys nor payloads are in messages or representations.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from toril.errors import InvalidOption, UnreadablePayload
from toril.protocol.codecs import Place, Step
from toril.protocol.extras import needed
from toril.protocol.keys import check_text
from toril.protocol.option_names import knows_its_options

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12  # bytes, as NIST SP 800-38D recommends; random, so one key serves 2^32 payloads
_SIZES: Final = (16, 24, 32)
_EXTRA: Final = "codecs"


@knows_its_options("a field of AesGcm")
@dataclass(frozen=True, slots=True)
class AesGcm:
    """Encrypts payloads. `keys` are by id: the first encrypts, all decrypt."""

    keys: Mapping[str, bytes] = field(repr=False)

    name: ClassVar[str] = "aes-gcm"
    place: ClassVar[Place] = "encrypt"

    def __post_init__(self) -> None:
        given: object = self.keys
        if not isinstance(given, Mapping) or not given:
            raise InvalidOption("keys", "are none", 'give {"2026-11": os.urandom(32)}')
        for key_id, key in self.keys.items():
            check_text("keys", key_id)
            if not _is_key(key):
                raise InvalidOption(
                    f"keys[{key_id!r}]", "is not a key of 16, 24 or 32 bytes", "use os.urandom(32)"
                )
        object.__setattr__(self, "keys", dict(self.keys))
        _aesgcm()  # raises now if cryptography is not installed

    def encode(self, raw: bytes, context: bytes) -> tuple[bytes, Step]:
        key_id, key = next(iter(self.keys.items()))
        nonce = os.urandom(_NONCE)
        return nonce + _aesgcm()(key).encrypt(nonce, raw, context), {"key": key_id}

    def decode(self, raw: bytes, step: Step, context: bytes, _max_size: int) -> bytes:
        key = self.keys.get(str(step.get("key")))
        if key is None:
            known = ", ".join(self.keys)
            raise UnreadablePayload(
                "payload",
                f"its key {step.get('key')!r} is not among those given ({known})",
                "give it to AesGcm",
            )
        with needed(_EXTRA):
            from cryptography.exceptions import InvalidTag
        try:
            return _aesgcm()(key).decrypt(raw[:_NONCE], raw[_NONCE:], context)
        except (InvalidTag, ValueError):
            problem = f"the bytes under the key id {step.get('key')!r} differ, or the payload was changed"
            raise UnreadablePayload("payload", problem, "give the key with which it was encrypted") from None


def _is_key(key: object) -> bool:
    return isinstance(key, bytes) and len(key) in _SIZES


def _aesgcm() -> type[AESGCM]:
    with needed(_EXTRA):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    return AESGCM
