"""Errors of the lake.

    TorilError
    └── LakeError
        ├── LakeTooNew      the table was written by a newer toril: .table .found .known
        └── TableMissing    the table does not exist yet: .table

Guarantee: each says which table it means and what to do.
"""

from __future__ import annotations

from toril.errors import TorilError


class LakeError(TorilError):
    """Something about a table of the lake."""


class LakeTooNew(LakeError):
    """The table's schema version is higher than this toril knows."""

    def __init__(self, table: str, found: int, known: int) -> None:
        super().__init__(
            f"{table} has schema version {found}, this toril knows {known}; "
            "upgrade toril, or point it at a lake of its own"
        )
        self.table = table
        self.found = found
        self.known = known


class TableMissing(LakeError):
    """The table has not been written yet."""

    def __init__(self, table: str, lake: str) -> None:
        super().__init__(
            f"{table} does not exist in {lake}; run `toril pipeline run` first, or check the path"
        )
        self.table = table
