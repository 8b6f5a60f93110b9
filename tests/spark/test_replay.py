"""Silver and gold anew from bronze, and what happens when a table has lost its last commits."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers import Server
from tests.spark.makers import Factories, Pipelines
from tests.spark.records import whole_tables
from tests.spark.test_pipeline import events, outcomes, to_silver
from toril.commands.manage import reprocess
from toril.commands.read import get_fields
from toril.errors import TorilError
from toril.lake import TABLES, TableRolledBack
from toril.spark.pipeline.files import maintain

MADE = [name for name in TABLES if name.startswith(("silver/", "gold/"))]


def test_silver_and_gold_are_built_anew_from_bronze_alone_row_for_row(
    make_pipeline: Pipelines, factory: Factories, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With errors, workers, stalls, jobs that are run again, a gap, and files that were put together meanwhile."""
    monkeypatch.setattr(maintain, "_MANY_FILES", 2)
    queue = factory("replay")
    queue.add(60)
    queue.let_stall(queue.take(5))
    queue.work(retry=0.4, limit=30)
    queue.report("w-1", heartbeats_failed=20)
    make_pipeline().run_once()
    queue.work(fail=0.5)
    failed = [
        job for job in queue.attempts if queue.transport.run(get_fields(queue.keys, job, ["failedReason"]))[0]
    ]
    for job in failed[:4]:
        with suppress(TorilError):  # it may have completed after it was retried
            queue.transport.run(reprocess(queue.keys, job))
    with valkey.client() as client:
        client.xtrim(queue.keys.events, maxlen=15, approximate=False)
    queue.report("w-1", heartbeats_failed=0)
    make_pipeline().run_once()
    queue.work()
    pipeline = make_pipeline(keep_files_hours=0, redis="redis://127.0.0.1:1")  # where nobody is
    make_pipeline().run_once()
    before = whole_tables(pipeline, MADE)
    assert {row["source"] for row in pipeline.query("select source from silver.attempts").to_pylist()} == {
        "events",
        "hash",
    }
    assert (
        pipeline.query("select * from silver.attempts where outcome = 'retried' and error is null").num_rows
        == 0
    )
    pipeline.maintain()
    assert pipeline.replay().events == events(pipeline) + 1  # and the gap
    assert whole_tables(pipeline, MADE) == before


def test_a_replay_completes_those_attempts_that_were_completed_before(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    queue = factory("filled")
    queue.add(20)
    queue.work(retry=0.5)
    make_pipeline(snapshots="failed").run_once()
    pipeline = make_pipeline()
    before = whole_tables(pipeline, MADE)
    pipeline.replay()
    assert whole_tables(pipeline, MADE) == before
    known = "select count(worker)::int as n from silver.attempts where outcome = 'completed'"
    assert pipeline.query(known).to_pylist() == [{"n": 0}]
    make_pipeline(fill="all").replay()  # asked for: as much as the hashes that are kept tell
    assert make_pipeline().query(known).to_pylist() == [{"n": queue.outcomes["retried"]}]


def roll_back(lake: Path, table: str, commits: int = 1) -> None:
    """The last entries of a table's log are gone, as after a copy that was interrupted."""
    entries = sorted((lake / table / "_delta_log").glob("*.json"))
    for entry in entries[-commits:]:
        entry.unlink()


def test_a_table_that_was_rolled_back_is_noticed_and_a_replay_repairs_it(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("rolled")
    for _ in range(2):
        queue.add(20)
        queue.work(retry=0.3)
        make_pipeline().run_once()
    for table in ("bronze/events", "bronze/jobs", "silver/attempts", "silver/gaps"):
        lake = tmp_path / table.replace("/", "-")
        shutil.copytree(tmp_path / "lake", lake)
        roll_back(lake, table)
        rolled_back = make_pipeline(lake=lake)
        with pytest.raises(
            TableRolledBack, match=f"{table} was rolled back.*toril pipeline replay --lake {lake}"
        ):
            rolled_back.run_once()
        assert table in (rolled_back.status().rolled_back or "")
    lake = tmp_path / "bronze-events"
    mended = make_pipeline(lake=lake)
    mended.replay()
    mended.run_once()  # what is still in Redis is read again
    assert events(mended) == queue.entries_added
    assert outcomes(mended) == queue.outcomes
    assert mended.status().rolled_back is None


def test_a_table_that_was_rolled_back_and_has_grown_again_is_noticed(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("grown")
    for _ in range(2):
        queue.add(10)
        to_silver(make_pipeline())
    roll_back(tmp_path / "lake", "bronze/events")
    queue.add(10)
    make_pipeline().ingest()
    with pytest.raises(
        TableRolledBack, match="bronze/events was rolled back: its version 2 is another one now"
    ):
        make_pipeline().run_once()


def test_jobs_that_were_rolled_back_are_counted_again(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("retold")
    for _ in range(2):
        queue.add(20)
        queue.work(retry=0.3)
        to_silver(make_pipeline())
    before = whole_tables(make_pipeline(), ["silver/jobs", "silver/attempts"])
    roll_back(tmp_path / "lake", "silver/jobs")
    pipeline = make_pipeline()
    pipeline.check()
    pipeline.refine()
    assert whole_tables(pipeline, ["silver/jobs", "silver/attempts"]) == before
