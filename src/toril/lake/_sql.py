"""SQL over a lake, read-only.

Guarantee: a query reads the tables of its lake and nothing else: it writes no file, reads no other file, loads no
extension, attaches no database and changes no setting.

Two checks: only statements that read are allowed, and DuckDB itself has no access to files. It gets its tables from
pyarrow.
"""

from __future__ import annotations

import re
from typing import Any, Final

from toril.errors import LakeError
from toril.protocol.extras import needed

# MULTI is what DuckDB makes of PIVOT: it asks for the values first.
_READS: Final = frozenset({"SELECT", "MULTI"})
_EXPLAIN: Final = re.compile(r"\s*explain\s+(?:analyze\s+)?(?:\([^()]*\)\s*)?", re.IGNORECASE)
_CONFIG: Final = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",  # names in the SQL are tables, never variables of this program
}


def connect() -> Any:
    """A DuckDB connection in memory without access to files; `lock` it when the tables are in place."""
    with needed("lake"):
        import duckdb

    connection = duckdb.connect(":memory:", config=dict(_CONFIG))
    connection.execute("set timezone = 'UTC'")
    return connection


def lock(connection: Any) -> None:
    """From here on no statement changes a setting of the connection."""
    connection.execute("set lock_configuration = true")


def check_read_only(sql: str) -> None:
    """Refuses everything but one statement that reads; `duckdb.Error` when it cannot be parsed."""
    import duckdb

    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise LakeError(f"the query holds {len(statements)} statements; give one select")
    kind = _kind(statements[0])
    if kind == "EXPLAIN" and (found := _EXPLAIN.match(sql)):
        check_read_only(sql[found.end() :])  # with ANALYZE the statement inside is run
    elif kind not in _READS:
        raise LakeError(f"{kind} is refused: a lake is read with select, and nothing else is allowed here")


def _kind(statement: Any) -> str:
    return str(statement.type).rpartition(".")[2]
