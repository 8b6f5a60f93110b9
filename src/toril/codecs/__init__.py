"""Codecs: payloads of a queue or a task are compressed, encrypted, or stored elsewhere.

    codecs = Codecs([Zstd(), AesGcm({"2026-11": key}), Offload(FolderStore("/srv/payloads"))])
    async with Queue("emails", codecs=codecs) as queue: ...
    Worker("emails", handle, codecs=codecs)

Guarantee: a queue without codecs pays nothing for them. zstandard and cryptography are imported when a codec is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from toril.lazy_names import lazy_names
from toril.protocol.codecs import Codec, Codecs, EncodedPayload, Step

if TYPE_CHECKING:
    from toril.codecs.aes_gcm import AesGcm
    from toril.codecs.folder_store import FolderStore
    from toril.codecs.offload import Offload, PayloadStore
    from toril.codecs.zstd import Zstd

__all__ = [
    "AesGcm",
    "Codec",
    "Codecs",
    "EncodedPayload",
    "FolderStore",
    "Offload",
    "PayloadStore",
    "Step",
    "Zstd",
]

__getattr__ = lazy_names(
    __name__,
    {
        "AesGcm": "toril.codecs.aes_gcm",
        "FolderStore": "toril.codecs.folder_store",
        "Offload": "toril.codecs.offload",
        "PayloadStore": "toril.codecs.offload",
        "Zstd": "toril.codecs.zstd",
    },
)
