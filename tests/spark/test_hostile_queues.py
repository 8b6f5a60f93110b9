"""Spark's sources on queues that a hostile program has made: all that can be read is read, the rest is reported."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import SparkSession

from tests.hostile_corpus import plant
from tests.servers import Server
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.options import SourceOptions
from toril.transport import BlockingTransport


@pytest.mark.parametrize("table", ["jobs", "events", "stream"])
def test_discovery_finds_queues_of_any_name(
    valkey: Server, prefix: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    with valkey.client() as client:
        planted = plant(client, prefix)
    options = SourceOptions.parse({"url": valkey.url, "table": table, "prefix": prefix, "queues": "*"})
    with BlockingTransport(valkey.url) as transport, caplog.at_level(logging.WARNING, "toril.spark"):
        found = QueueSelection(options).existing(transport)
    assert set(planted.queue_names) - {"}{"} <= set(found)
    # Not `caplog.text`: PySpark's logger replaces the formatter of handlers.
    undecodable, mistyped = caplog.messages
    assert "their keys are no UTF-8 text: " in undecodable and "\\xff\\xfequeue" in undecodable
    assert "their keys hold other types than those of a queue: " in mistyped
    assert ("a-string" if table == "stream" else planted.wrong_type_queue) in mistyped


@pytest.mark.parametrize("table", ["jobs", "events", "logs", "stream", "dlq"])
def test_a_table_of_all_queues_holds_hostile_records(
    spark: SparkSession, valkey: Server, prefix: str, table: str
) -> None:
    with valkey.client() as client:
        plant(client, prefix)
    reader = (
        spark.read.format("toril").option("url", valkey.url).option("table", table).option("prefix", prefix)
    )
    rows = reader.option("queues", "*").load().collect()
    queues = {row["queue"] for row in rows}
    assert "hostile" in queues and len(queues) >= (1 if table == "logs" else 10)
