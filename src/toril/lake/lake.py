"""`Lake`: every table by name, for readers that have no Spark.

Guarantee: a read sees whole commits only; in a query, a table not written yet is empty, not an error.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from toril.errors import LakeError, TableMissing
from toril.lake._sql import check_read_only, connect, lock
from toril.lake.delta_table import LakeTable
from toril.lake.storage import normalise
from toril.lake.tables import TABLES, TableSpec, table_spec
from toril.protocol.extras import needed

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyarrow.dataset import Dataset

# silver/jobs keeps superseded rows until they are compacted; readers need the last row of each job.
_LATEST_JOBS: Final = (
    "select * from {source} qualify row_number() over "
    "(partition by queue, job_id order by updated_at desc, updated_seq desc) = 1"
)


def latest_rows(spec: TableSpec, source: str) -> str:
    """SQL for the rows of a table that readers need, of a source that has all."""
    body = _LATEST_JOBS if spec.name == "silver/jobs" else "select * from {source}"
    return body.format(source=source)


class Lake:
    """A folder or URL that holds bronze, silver and gold tables.

    `storage_options` are deltalake's (`AWS_REGION`, …); they are needed for object storage only.
    """

    def __init__(
        self, place: str | Path = "./lake", storage_options: Mapping[str, str] | None = None
    ) -> None:
        self.url = normalise(place)
        self.storage_options = dict(storage_options or {})
        self._logs: dict[str, LakeTable] = {}
        self._creating = threading.Lock()  # two threads that create a table at once leave a commit too many

    def __repr__(self) -> str:
        return f"Lake({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Executors receive a lake without the open logs of the driver.
        return {"url": self.url, "storage_options": self.storage_options, "_logs": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _creating=threading.Lock())

    def location(self, name: str) -> str:
        """Where a table lies."""
        return f"{self.url}/{table_spec(name).name}"

    def table(self, name: str) -> LakeTable:
        """The log of a table, as of now; `TableMissing` if it was never written."""
        spec = table_spec(name)
        known = self._logs.get(spec.name)
        if known is not None:
            return known.refresh()
        log = LakeTable.open(spec, self.location(name), self.storage_options, self.url)
        return self._logs.setdefault(spec.name, log)

    def ensure(self, name: str) -> LakeTable:
        """The log of a table, which is created empty if it is not there."""
        spec = table_spec(name)
        with self._creating:
            if spec.name not in self._logs:
                log = LakeTable.open_or_create(spec, self.location(name), self.storage_options)
                self._logs[spec.name] = log
        return self._logs[spec.name].refresh()

    def reopen(self) -> None:
        """Forgets what was known of the tables: they were removed, or replaced."""
        self._logs.clear()

    def tables(self) -> list[str]:
        """The tables that exist."""
        return [name for name in TABLES if self._exists(name)]

    def _exists(self, name: str) -> bool:
        try:
            self.table(name)
        except TableMissing:
            return False
        return True

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A whole table, or some of its columns; superseded rows of silver/jobs are left out."""
        wanted = ", ".join(f'"{column}"' for column in columns) if columns else "*"
        spec = table_spec(name)
        self.table(name)
        return self.query(f"select {wanted} from {spec.layer}.{spec.short_name}")

    def dataset(self, name: str) -> Dataset:
        """A table as a `pyarrow.dataset.Dataset`, to be scanned by column and filter; `TableMissing` if there is none.

        Files are opened by pyarrow's own file system. Without it deltalake has pyarrow's threads call back into Python,
        which aborts the process ("terminate called without an active exception") if they are late at its end.
        """
        return self.table(name).dataset()

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
        """The result of one statement that reads, run by DuckDB; tables are called `gold.queue_minute` and so on.

        Parameters stand for `?` in their order, or for `$name` by name. The statement reaches the tables of this lake
        and no other file; whatever writes, attaches, installs or sets is refused.
        """
        with needed("lake"):
            import duckdb

        connection = connect()
        try:
            check_read_only(sql)
            self._create_views(connection, sql)
            lock(connection)
            return _as_table(connection.sql(sql, params=parameters or []))
        except duckdb.Error as error:
            raise LakeError(f"the query failed: {error}") from None
        finally:
            connection.close()

    def _create_views(self, connection: DuckDBPyConnection, sql: str) -> None:
        for layer in ("bronze", "silver", "gold"):
            connection.execute(f"create schema {layer}")
        for spec in TABLES.values():
            if re.search(rf"\b{spec.layer}\"?\s*\.\s*\"?{spec.short_name}\b", sql, re.IGNORECASE):
                self._create_view(connection, spec)

    def _create_view(self, connection: DuckDBPyConnection, spec: TableSpec) -> None:
        source = f"_{spec.layer}_{spec.short_name}"
        connection.register(source, self._dataset(spec))
        connection.execute(f"create view {spec.layer}.{spec.short_name} as {latest_rows(spec, source)}")

    def _dataset(self, spec: TableSpec) -> Dataset | pa.Table:
        try:
            return self.dataset(spec.name)
        except TableMissing:
            return spec.schema.empty_table()


def _as_table(answer: Any) -> pa.Table:
    if answer is None:
        raise LakeError("the statement returns nothing; a lake is read with select")
    return answer.to_arrow_table() if hasattr(answer, "to_arrow_table") else answer.arrow()
