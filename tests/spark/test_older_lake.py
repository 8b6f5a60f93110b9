"""A lake that an older version wrote, before small runs were computed without Spark: it is continued as it is.

`data/older-lake.tgz` has its tables and, as dumped keys, the server that it was read from. Two of its jobs were active.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from tests.spark.factory import Factory
from toril.lake import Lake
from toril.spark.pipeline import Pipeline, PipelineOptions

STORED = Path(__file__).parent / "data" / "older-lake.tgz"
PREFIX = "migrated"


@pytest.fixture
def place(tmp_path: Path, valkey: Server) -> Iterator[Path]:
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path, filter="data")
    with valkey.client() as client:
        for key, dump in json.loads((tmp_path / "redis.json").read_text()).items():
            client.restore(key, 0, base64.b64decode(dump), replace=True)
        yield tmp_path / "lake"
        client.delete(*client.keys(f"{PREFIX}:*"))


def rows(lake: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Lake(lake).query(f"select * from {table} order by all").to_pylist()
    return found


def test_an_older_lake_is_continued_checked_and_replayed(place: Path, valkey: Server) -> None:
    pipeline = Pipeline(PipelineOptions(redis=valkey.url, prefix=PREFIX, lake=place, engine="driver"))
    before = rows(place, "silver.attempts")
    assert [one.subject for one in pipeline.examine()] == ["gold/alerts"], (
        "it has no mark, which a run writes"
    )
    pipeline.run_once()
    assert rows(place, "silver.attempts") == before, "nothing was new"
    assert pipeline.examine() == []

    with Factory(valkey.url, "emails", PREFIX) as queue:
        with valkey.client() as client:
            active = [one.decode() for one in client.lrange(queue.keys.active, 0, -1)]
        assert len(active) == 2
        queue.let_stall(active)
        queue.work(fail=0.2)
        pipeline.run_once()
        after = rows(place, "silver.attempts")
        assert [row for row in after if row in before] == before
        assert (
            Counter(row["outcome"] for row in after) - Counter(row["outcome"] for row in before)
            == queue.outcomes
        )
    states = Counter(row["state"] for row in rows(place, "silver.jobs"))
    assert states["completed"] + states["failed"] == sum(states.values()) == 20
    assert pipeline.examine() == []

    pipeline.replay()
    assert rows(place, "silver.attempts") == after
    assert pipeline.examine() == []
