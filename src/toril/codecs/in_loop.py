"""Codecs in an event loop: what may take long runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from toril.protocol.codecs import PayloadField, QueueCodecs, is_encoded

# Bytes that all codecs together work on for about a millisecond.
_LONG: Final = 256 * 1024


async def encoded(codecs: QueueCodecs, name: str, raw: bytes, where: PayloadField) -> bytes:
    """A payload of a job of this name, encoded."""
    (text,) = await encoded_all(codecs, [(name, raw)], where)
    return text


async def encoded_all(
    codecs: QueueCodecs, payloads: Sequence[tuple[str, bytes]], where: PayloadField = "data"
) -> list[bytes]:
    """Payloads of jobs, given with their names, encoded."""

    def encode() -> list[bytes]:
        return [codecs.encode(name, raw, where) for name, raw in payloads]

    offloads = any(
        own is not None and own.offloads for own in (codecs.for_name(name) for name, _ in payloads)
    )
    is_long = offloads or sum(len(raw) for _, raw in payloads) >= _LONG
    return await asyncio.to_thread(encode) if is_long else encode()


async def decoded(codecs: QueueCodecs, name: str, raw: bytes, where: PayloadField) -> bytes:
    """A payload of a job of this name, as it was before."""
    own = codecs.for_name(name)
    if own is not None and is_encoded(raw) and (own.offloads or len(raw) >= _LONG):
        return await asyncio.to_thread(own.decode, raw, where)
    return codecs.decode(name, raw, where)
