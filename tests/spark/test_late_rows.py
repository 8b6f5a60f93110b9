"""Rows that come after their micro-batch was committed, as those of stateful operators do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows

from toril import sync
from toril.commands.leases import open_leases
from toril.errors import InvalidOption
from toril.protocol.keys import QueueKeys
from toril.spark.sources.readers import open_transport
from toril.spark.worker.settle_options import SettleOptions
from toril.spark.worker.settle_sink import SettleTally, settle_task
from toril.spark.worker.work_options import WorkOptions
from toril.spark.worker.work_source import WorkStreamReader, source_schema

Make = Callable[..., WorkStreamReader]
Offset = dict[str, Any]
LIMIT = ReadMaxRows(10)


@pytest.fixture
def queue(valkey_url: str, prefix: str) -> Iterator[sync.Queue]:
    with sync.Queue("late", redis=valkey_url, prefix=prefix) as made:
        made.add_bulk([("score", {"x": n}) for n in range(10)])
        yield made


@pytest.fixture
def make(valkey_url: str, prefix: str) -> Iterator[Make]:
    """Readers as Spark's planning process has them."""
    made: list[WorkStreamReader] = []

    def reader(**given: str) -> WorkStreamReader:
        options = WorkOptions.parse({"queues": "late", "url": valkey_url, "prefix": prefix, **given})
        made.append(WorkStreamReader(options, from_arrow_schema(source_schema(options))))
        return made[-1]

    yield reader
    for one in made:
        one.stop()


def read(reader: WorkStreamReader, start: Offset, end: Offset) -> list[pa.RecordBatch]:
    return [batch for one in reader.partitions(start, end) for batch in reader.read(one)]


def settle(url: str, prefix: str, batches: Sequence[pa.RecordBatch]) -> SettleTally:
    options = SettleOptions.parse({"op": "settle", "url": url, "prefix": prefix})
    rows = [one.append_column("result", pa.array([1] * one.num_rows)) for one in batches]
    return settle_task(options, iter(rows)).tally


def test_late_rows_are_refused_with_the_option_that_they_need(
    make: Make, queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    taken = read(reader, start, end)
    reader.latestOffset(end, LIMIT)  # the micro-batch is committed: its jobs are given back
    with pytest.raises(InvalidOption, match=r"give_back.*stateful operator.*never"):
        settle(valkey_url, prefix, taken)
    counts = queue.get_job_counts()
    assert (counts.waiting, counts.active) == (10, 0)


def test_late_rows_are_settled_if_jobs_are_never_given_back(
    make: Make, queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    reader = make(give_back="never")
    start = reader.initialOffset()
    end = reader.latestOffset(start, LIMIT)
    taken = read(reader, start, end)
    assert reader.latestOffset(end, LIMIT) == end, "nothing else waits"
    assert queue.get_job_counts().active == 10
    assert settle(valkey_url, prefix, taken).completed == 10
    reader.latestOffset(end, LIMIT)
    with open_transport(valkey_url) as transport:
        assert transport.run(open_leases(QueueKeys("late", prefix))) == [], "settled leases are closed"
