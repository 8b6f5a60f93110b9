"""The engine that computes on Spark's executors.

Guarantee: only small answers and lines about files travel to the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from toril.lake import Lake
from toril.lake.delta_table import DataFile
from toril.spark.pipeline.engines.engine import Query, Rows, Task
from toril.spark.pipeline.files.staging import frame_of, stage
from toril.spark.transforms.alerts import alerts
from toril.spark.transforms.dialect import SPARK
from toril.spark.transforms.errors import with_fingerprint

if TYPE_CHECKING:
    from toril.spark.transforms.rules import Rule


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Computes in a Spark session."""

    spark: SparkSession

    def collect(self, query: Query) -> pa.Table:
        return self._frame(query).toArrow()

    def run(
        self, query: Query, task: Task, answer: pa.Schema, *, parts: int = 0, by: Sequence[str] = ()
    ) -> pa.Table:
        frame = self._frame(query)
        frame = frame.repartition(*by) if by else frame.repartition(parts)
        return frame.mapInArrow(task, from_arrow_schema(answer)).toArrow()

    def each(self, rows: pa.Table, task: Task, answer: pa.Schema, *, parts: int) -> pa.Table:
        frame = self.spark.createDataFrame(rows).repartition(parts)
        return frame.mapInArrow(task, from_arrow_schema(answer)).toArrow()

    def write(self, query: Query, lake: Lake, name: str) -> list[DataFile]:
        return stage(self._frame(query).repartition(1), lake, name)

    def alerts(self, tables: Mapping[str, Rows], rules: Sequence[Rule]) -> pa.Table:
        frames = {name: self._rows(rows) for name, rows in tables.items()}
        return alerts(self.spark, frames, rules).toArrow()

    def _frame(self, query: Query) -> DataFrame:
        frames = {name: self._rows(rows) for name, rows in query.tables.items()}
        return self.spark.sql(query.sql(SPARK), None, **frames)

    def _rows(self, rows: Rows | pa.Table) -> DataFrame:
        if isinstance(rows, pa.Table):
            return self.spark.createDataFrame(rows)
        frame = frame_of(self.spark, rows.lake, rows.table, rows.files)
        frame = frame.where(rows.where) if rows.where else frame
        return with_fingerprint(frame) if rows.with_fingerprints else frame
