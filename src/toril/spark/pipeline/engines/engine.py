"""What an engine is asked: queries over rows of the lake, and tasks over their answers.

Guarantee: both engines give the same rows. `SparkEngine` spreads the work over Spark's executors; `DriverEngine` does
it in this process, without Java, for data that is small enough.

SQL is written once, in words that Spark and DuckDB both know. Where they have none in common, the words of Spark are
taught to DuckDB (`driver_engine.py`), or the `Dialect` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from toril.lake import Lake
from toril.lake.delta_table import DataFile
from toril.spark.transforms.dialect import Dialect

if TYPE_CHECKING:
    from toril.spark.transforms.rules import Rule

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a table of the lake: those of some files for which a condition holds."""

    lake: Lake
    table: str
    files: Sequence[DataFile]
    where: str = ""
    with_fingerprints: bool = False  # of attempts with an error: `pattern` and `fingerprint` are added

    def limited(self, condition: str) -> Rows:
        """Only those of the rows for which one more condition holds."""
        return replace(self, where=f"({self.where}) and ({condition})" if self.where else condition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """SQL in which `{name}` stands for a table."""

    sql: Callable[[Dialect], str]
    tables: Mapping[str, Rows | pa.Table] = field(default_factory=dict)


class Engine(Protocol):
    """Computes what the steps of a pipeline ask for."""

    def collect(self, query: Query) -> pa.Table:
        """The answer, which must be small."""
        ...

    def run(
        self, query: Query, task: Task, answer: pa.Schema, *, parts: int = 0, by: Sequence[str] = ()
    ) -> pa.Table:
        """What a task says of the answer: of so many parts of it, or of parts that have all rows with equal `by`."""
        ...

    def each(self, rows: pa.Table, task: Task, answer: pa.Schema, *, parts: int) -> pa.Table:
        """What a task says of given rows, in so many parts."""
        ...

    def write(self, query: Query, lake: Lake, name: str) -> list[DataFile]:
        """The answer as files of a table, which are yet to be committed."""
        ...

    def alerts(self, tables: Mapping[str, Rows], rules: Sequence[Rule]) -> pa.Table:
        """What rules find in gold tables, as rows of gold/alerts."""
        ...
