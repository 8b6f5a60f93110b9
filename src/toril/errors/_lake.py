"""Errors of the lake.

Guarantee: each names its table or place and a remedy.
"""

from __future__ import annotations

from toril.errors._base import TorilError


class LakeError(TorilError):
    """Something about a table of the lake."""


class CommitGone(LakeError):
    """A commit that has yet to be refined is no longer in the table's log."""

    def __init__(self, table: str, version: int) -> None:
        super().__init__(
            f"commit {version} is no longer in the log of {table}; `toril pipeline replay` reads the tables "
            "as they are and builds silver and gold anew"
        )
        self.table = table
        self.version = version


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


class TableRolledBack(LakeError):
    """A table holds less than what was made of it: its last commits were removed, or an old copy was put back."""

    def __init__(self, table: str, found: str, made: str, lake: str) -> None:
        super().__init__(
            f"{table} was rolled back: {found}, but {made}; `toril pipeline replay --lake {lake}` builds silver "
            "and gold anew from what bronze holds"
        )
        self.table = table
        self.made = made
