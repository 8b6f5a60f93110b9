"""`Zstd`: payloads are compressed with Zstandard.

Guarantee: decompression stops at `max_size` bytes, whatever a payload says of itself; its window has at most 8 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Final

from toril.errors import UnreadablePayload
from toril.protocol.codecs import Place, Step
from toril.protocol.extras import needed
from toril.protocol.option_names import knows_its_options
from toril.protocol.option_parts import check_integer

_WINDOW: Final = 8 * 1024 * 1024  # what levels up to 19 need; a payload that asks for more is refused
_EXTRA: Final = "codecs"


@knows_its_options("a field of Zstd")
@dataclass(frozen=True, slots=True, kw_only=True)
class Zstd:
    """Compresses payloads of at least `min_size` bytes, unless they become larger."""

    level: int = 3  # 1 is fastest, 19 smallest
    min_size: int = 512  # bytes; smaller payloads do not get smaller

    name: ClassVar[str] = "zstd"
    place: ClassVar[Place] = "compress"

    def __post_init__(self) -> None:
        check_integer("level", self.level, 1, 19)
        check_integer("min_size", self.min_size, 0, 2**40)
        _zstandard()  # raises now if it is not installed

    def encode(self, raw: bytes, _context: bytes) -> tuple[bytes, Step] | None:
        if len(raw) < self.min_size:
            return None
        compressed = _zstandard().ZstdCompressor(level=self.level).compress(raw)
        return (compressed, {}) if len(compressed) < len(raw) else None

    def decode(self, raw: bytes, _step: Step, _context: bytes, max_size: int) -> bytes:
        zstandard = _zstandard()
        try:
            with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(raw) as reader:
                plain: bytes = reader.read(max_size + 1)
        except zstandard.ZstdError as error:
            raise UnreadablePayload("payload", f"zstd: {error}", "look at the stored job") from None
        if len(plain) > max_size:
            remedy = "raise codecs.max_size if it is yours"
            raise UnreadablePayload("payload", f"it has more than {max_size} bytes", remedy)
        return plain


def _zstandard() -> ModuleType:
    with needed(_EXTRA):
        import zstandard
    return zstandard
