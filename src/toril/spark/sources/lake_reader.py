"""Tables of a lake through `format("toril")`: `.option("lake", "./lake").option("table", "silver.attempts")`.

Guarantee: a DataFrame reads one version of its table: the latest one when it was planned, of silver/jobs when it is
read. Superseded rows of silver/jobs are left out. No Delta jar is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from toril.errors import InvalidOption
from toril.lake import Lake, table_spec
from toril.lake.delta_table import DataFile
from toril.lake.files import files_dataset

_KNOWN = ("lake", "table", "columns", "storage_secrets", "path")
_LATEST_ROWS = "silver/jobs"  # its rows replace each other, so that one task must see all of them
_SMALL_FILE = 4 * 1024 * 1024  # bytes: what a task reads at least


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """Which table of which lake, and which of its columns."""

    lake: str
    table: str
    columns: tuple[str, ...] = ()  # empty: all
    storage: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LakeOptions:
        options = {key.lower(): value for key, value in given.items()}
        for key in options:
            if key not in _KNOWN:
                raise InvalidOption(
                    "option", f"{key!r} is not for tables of a lake", f"one of {', '.join(_KNOWN)}"
                )
        spec = table_spec(options.get("table", options.get("path", "")))
        columns = tuple(name.strip() for name in options.get("columns", "").split(",") if name.strip())
        for name in columns:
            if name not in spec.schema.names:
                raise InvalidOption(
                    "columns", f"{spec.name} has no {name!r}", f"one of {', '.join(spec.schema.names)}"
                )
        storage = json.loads(options.get("storage_secrets", "{}"))
        return cls(lake=options["lake"], table=spec.name, columns=columns, storage=storage)

    @property
    def schema(self) -> pa.Schema:
        schema = table_spec(self.table).schema
        return pa.schema([schema.field(name) for name in self.columns]) if self.columns else schema


class Files(InputPartition):
    """The files that one task reads."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        super().__init__(None)
        self.files = list(files)


class LakeReader(DataSourceReader):
    """Reads the files of one table."""

    def __init__(self, options: LakeOptions, schema: StructType) -> None:
        self.options = options
        self.expected = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        files = self._lake().table(self.options.table).files()
        if self.options.table == _LATEST_ROWS or not files:
            return [Files(files)]
        share = max(_SMALL_FILE, sum(file.size for file in files) // (os.cpu_count() or 1))
        return list(_packed(files, share))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        names = self.expected.names
        if not isinstance(partition, Files) or not partition.files:
            return
        if self.options.table == _LATEST_ROWS:
            yield from self._lake().read(_LATEST_ROWS, names).cast(self.expected).to_batches()
            return
        rows = files_dataset(self._lake(), self.options.table, partition.files)
        for batch in rows.to_batches(columns=names):
            yield batch.cast(self.expected)

    def _lake(self) -> Lake:
        return Lake(self.options.lake, self.options.storage)


def _packed(files: Sequence[DataFile], share: int) -> Iterator[Files]:
    held: list[DataFile] = []
    for file in files:
        if held and sum(one.size for one in held) + file.size > share:
            yield Files(held)
            held = []
        held.append(file)
    yield Files(held)
