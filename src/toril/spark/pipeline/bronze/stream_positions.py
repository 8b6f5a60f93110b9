"""Positions of streams as numbers, which Delta keeps with a commit.

Guarantee: the numbers compare as the ids do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from toril.lake.marked_log import MarkedLog
from toril.spark.sources.positions import ORIGIN, SEQ_BITS, Position, id_parts

if TYPE_CHECKING:
    from toril.lake import Lake

TABLE: Final = "bronze/events"
_ID_MARK: Final = "toril.events.id/"


def packed_id(entry_id: str) -> int:
    ms, seq = id_parts(entry_id)
    return (ms << SEQ_BITS) | seq


def unpacked_id(packed: int) -> str:
    return f"{packed >> SEQ_BITS}-{packed & ((1 << SEQ_BITS) - 1)}"


def _id_app(queue: str) -> str:
    return f"{_ID_MARK}{queue}"


def _count_app(queue: str) -> str:
    return f"toril.events.n/{queue}"


def committed_position(log: MarkedLog, queue: str) -> Position:
    """How far the table has the events of a queue."""
    packed, n = log.committed(_id_app(queue)), log.committed(_count_app(queue))
    if packed < 0:
        return ORIGIN
    return Position(unpacked_id(packed), None if n < 0 else n)


def position_marks(positions: Mapping[str, Position]) -> dict[str, int]:
    """Positions as application transactions, which Delta keeps for ever and commits with the rows."""
    marks: dict[str, int] = {}
    for queue, position in positions.items():
        marks[_id_app(queue)] = packed_id(position.id)
        if position.n is not None:
            marks[_count_app(queue)] = position.n
    return marks


def positions_in(marks: Mapping[str, int]) -> dict[str, str]:
    """Queue → the last event that some commits have of it."""
    return {
        name.removeprefix(_ID_MARK): unpacked_id(packed)
        for name, packed in marks.items()
        if name.startswith(_ID_MARK)
    }


def note_starts(lake: Lake, positions: Mapping[str, Position]) -> None:
    """Commits where the reading of new queues starts, for this run and all later ones."""
    log = lake.ensure(TABLE)
    unknown = {queue: one for queue, one in positions.items() if committed_position(log, queue) == ORIGIN}
    if unknown:
        log.commit([], application="toril.starts", version=log.version + 1, marks=position_marks(unknown))
