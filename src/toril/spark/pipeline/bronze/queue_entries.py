"""Entries: what stream and list queues and their dead letters hold, to bronze/stream_entries and bronze/dlq_entries.

Guarantee: an entry of a stream is stored once: the position of each stream is committed with its entries. The elements
of a list have no ids; each is stored once as it is written, attempts included, if the pipeline reads the list in time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from toril.lake import Lake, table_spec
from toril.lake.delta_table import LakeTable
from toril.spark.pipeline.bronze.entry_sources import APPLICATION, EntrySource, new_sources
from toril.spark.pipeline.bronze.stream_positions import packed_id
from toril.spark.pipeline.engines.engine import Engine
from toril.spark.pipeline.files.manifest import Manifest, files_in
from toril.spark.pipeline.files.parquet_files import write_file
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.entries import read_list, read_stream_entries
from toril.spark.sources.readers import open_transport
from toril.transport import BlockingTransport

_TASKS: Final = 8
_ANSWER: Final = pa.schema([("files", pa.string())])


@dataclass(frozen=True, slots=True)
class EntryWriter:
    """Reads sources and writes files; runs on executors."""

    lake: Lake
    url: str | None = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sources = [
            EntrySource(**json.loads(text)) for batch in batches for text in batch.column(0).to_pylist()
        ]
        for source in sources:
            tables = self._read(source)
            files = [write_file(self.lake, source.table, pa.concat_tables(tables), {})] if tables else []
            yield pa.RecordBatch.from_pydict({"files": [Manifest({source.table: files}).to_json()]})

    def _read(self, source: EntrySource) -> list[pa.Table]:
        spec = table_spec(source.table)
        with open_transport(self.url) as transport:
            if not source.until:
                return self._unseen(source, list(read_list(transport, source.queue, source.key, spec)))
            return list(
                read_stream_entries(
                    transport, source.queue, source.key, spec, source.kind, source.after, source.until
                )
            )

    def _unseen(self, source: EntrySource, pages: list[pa.Table]) -> list[pa.Table]:
        if not pages:
            return []
        now = pa.concat_tables(pages)
        sql = "select raw from bronze.stream_entries where kind = 'list' and queue = ?"
        known = set(self.lake.query(sql, [source.queue])["raw"].to_pylist())
        fresh = now.filter(pa.array([raw not in known for raw in now["raw"].to_pylist()]))
        return [fresh] if fresh.num_rows else []


@dataclass(slots=True)
class EntryCollector:
    """Stores the entries that are new since its last run."""

    engine: Callable[[], Engine]  # asked only when there is something new
    lake: Lake
    url: str | None = field(repr=False)
    directories: Mapping[str, QueueSelection]  # kind → where its queues are looked up
    connect: Callable[[], BlockingTransport]

    def run(self) -> int:
        """Stores new entries. Returns their number."""
        with self.connect() as transport:
            fresh = list(new_sources(transport, self.directories, self.lake.ensure))
        if not fresh:
            return 0
        rows = pa.table({"source": [json.dumps(asdict(source)) for source in fresh]})
        writer, parts = EntryWriter(self.lake, self.url), min(rows.num_rows, _TASKS)
        files = files_in(self.engine().each(rows, writer, _ANSWER, parts=parts)["files"].to_pylist())
        for name in {source.table for source in fresh}:
            marks = {one.mark: packed_id(one.until) for one in fresh if one.table == name and one.until}
            self._commit(self.lake.ensure(name), files[name], marks)
        return sum(file.rows for some in files.values() for file in some)

    def _commit(self, log: LakeTable, files: list[Any], marks: Mapping[str, int]) -> None:
        if files or marks:
            log.commit(files, application=APPLICATION, version=log.version + 1, marks=marks)
