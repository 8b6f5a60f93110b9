"""The engine that computes in the driver's process, with DuckDB and pyarrow.

Guarantee: no Java is started. Memory is bounded by the rows of one part, whatever the number of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from toril.lake import Lake, table_spec
from toril.lake.delta_table import DataFile
from toril.protocol.error_pattern import error_pattern, fingerprint
from toril.protocol.extras import needed
from toril.spark.pipeline.engines.engine import Engine, Query, Rows, Task
from toril.spark.pipeline.files.parquet_files import write_parts
from toril.spark.transforms.dialect import DUCKDB
from toril.spark.transforms.rules import DEFAULT_RULES

if TYPE_CHECKING:
    from toril.spark.transforms.rules import Rule

_ROWS_AT_ONCE: Final = 250_000  # of one part that a task is given, where parts are made by columns
# Words of Spark. Text that is not JSON has no parts there, and is an error here.
_MACROS: Final = (
    "unix_millis(moment) as epoch_ms(moment)",
    "timestamp_millis(ms) as make_timestamptz(ms * 1000)",
    "shiftleft(number, bits) as number << bits",
    "shiftright(number, bits) as number >> bits",
    "percentile(number, share) as quantile_cont(number, share)",
    "get_json_object(text, path) as case when json_valid(text) then json_extract_string(text, path) end",
)


@dataclass(frozen=True, slots=True)
class DriverEngine:
    """Computes where it is called."""

    spark: Callable[[], Engine]  # asked for rules that a user wrote: their SQL is Spark's

    def collect(self, query: Query) -> pa.Table:
        with closing(_connection(query.tables)) as connection:
            names = {name: f'"{name}"' for name in query.tables}
            answer: pa.Table = connection.sql(query.sql(DUCKDB).format(**names)).to_arrow_table()
            return answer

    def run(
        self, query: Query, task: Task, answer: pa.Schema, *, parts: int = 0, by: Sequence[str] = ()
    ) -> pa.Table:
        rows = self.collect(query)
        if not by:
            return self.each(rows, task, answer, parts=parts)
        return _answers(task, _parts_by(rows, by), answer)

    def each(self, rows: pa.Table, task: Task, answer: pa.Schema, *, parts: int) -> pa.Table:
        size = max(1, -(-rows.num_rows // parts))
        return _answers(task, (rows.slice(start, size) for start in range(0, rows.num_rows, size)), answer)

    def write(self, query: Query, lake: Lake, name: str) -> list[DataFile]:
        schema = table_spec(name).schema
        rows = self.collect(query).select(schema.names).cast(schema)
        return write_parts(lake, name, rows) if rows.num_rows else []

    def alerts(self, tables: Mapping[str, Rows], rules: Sequence[Rule]) -> pa.Table:
        schema = table_spec("gold/alerts").schema
        rows = [row for rule in rules if rule in DEFAULT_RULES for row in self._ask(rule, tables)]
        found = pa.Table.from_pylist(rows, schema=schema)
        others = [rule for rule in rules if rule not in DEFAULT_RULES]
        return (
            pa.concat_tables([found, self.spark().alerts(tables, others).cast(schema)]) if others else found
        )

    def _ask(self, rule: Rule, tables: Mapping[str, Rows]) -> list[dict[str, object]]:
        sql = f"select * from ({rule.sql}) asked where value > {float(rule.threshold)}"
        return rule.alerts(self.collect(Query(sql=lambda _: sql, tables=tables)).to_pylist())


def _connection(tables: Mapping[str, Rows | pa.Table]) -> Any:
    with needed("lake"):
        import duckdb

    connection = duckdb.connect(":memory:", config={"enable_external_access": "false"})
    connection.execute("set timezone = 'UTC'")
    for macro in _MACROS:
        connection.execute(f"create macro {macro}")
    for name, rows in tables.items():
        _register_rows(connection, name, rows)
    return connection


def _register_rows(connection: Any, name: str, rows: Rows | pa.Table) -> None:
    if isinstance(rows, pa.Table):
        connection.register(name, rows)
        return
    from toril.lake.files import files_dataset  # which imports pandas, where it is installed

    connection.register(f"all {name}", files_dataset(rows.lake, rows.table, rows.files))
    where = f" where {rows.where}" if rows.where else ""
    connection.execute(f'create view "{name}" as select * from "all {name}"{where}')
    if rows.with_fingerprints:
        _add_fingerprints(connection, name)


def _add_fingerprints(connection: Any, name: str) -> None:
    texts = connection.sql(f'select distinct error from "{name}" where error is not null').to_arrow_table()
    patterns = [error_pattern(text) for text in texts["error"].to_pylist()]
    known = texts.append_column("pattern", pa.array(patterns, pa.string()))
    prints = pa.array([fingerprint(one) for one in patterns], pa.string())
    connection.register(f"patterns of {name}", known.append_column("fingerprint", prints))
    connection.execute(f'alter view "{name}" rename to "plain {name}"')
    connection.execute(
        f'create view "{name}" as select * from "plain {name}" join "patterns of {name}" using (error)'
    )


def _parts_by(rows: pa.Table, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Rows with equal values in one part."""
    parts = 1 + rows.num_rows // _ROWS_AT_ONCE
    if parts == 1:
        yield rows
        return
    with closing(_connection({"rows": rows})) as connection:
        sql = f'select hash({", ".join(columns)}) % {parts} as part from "rows"'
        part = connection.sql(sql).to_arrow_table()["part"]
    for number in range(parts):
        yield rows.filter(pc.equal(part, pa.scalar(number, part.type)))


def _answers(task: Task, parts: Iterator[pa.Table], answer: pa.Schema) -> pa.Table:
    found = [batch for part in parts for batch in task(iter(part.to_batches()))]
    return pa.Table.from_batches([batch.cast(answer) for batch in found], schema=answer)
