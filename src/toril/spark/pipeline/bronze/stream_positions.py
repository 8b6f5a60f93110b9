"""Positions of streams as numbers, which Delta keeps with a commit.

Guarantee: the numbers compare as the ids do.
"""

from __future__ import annotations

from typing import Final

from toril.spark.sources.positions import id_parts

SEQ_BITS: Final = 20  # a million entries in one millisecond is more than a server can add


def packed_id(entry_id: str) -> int:
    ms, seq = id_parts(entry_id)
    return (ms << SEQ_BITS) | seq


def unpacked_id(packed: int) -> str:
    return f"{packed >> SEQ_BITS}-{packed & ((1 << SEQ_BITS) - 1)}"
