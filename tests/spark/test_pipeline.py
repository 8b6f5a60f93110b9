"""The whole way: queues, bronze, silver, gold; once, again, and after losing what can be lost."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from tests.servers import Server
from tests.spark.makers import Factories, Pipelines
from toril import Queue
from toril.lake import Lake, LakeError, LakeTooNew, TableMissing
from toril.lake.delta_table import LakeTable
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.files.parquet_files import write_file


def counts(pipeline: Pipeline, sql: str) -> Any:
    return {row["k"]: row["n"] for row in pipeline.query(sql).to_pylist()}


def outcomes(pipeline: Pipeline) -> Any:
    return counts(pipeline, "select outcome as k, count(*) as n from silver.attempts group by 1")


def to_silver(pipeline: Pipeline) -> Any:
    """All steps but gold, for tests that do not look at figures."""
    pipeline.ingest()
    pipeline.refine()
    pipeline.reconcile()
    return pipeline


def events(pipeline: Pipeline) -> Any:
    return pipeline.query("select count(*) as n from bronze.events where event <> 'toril.gap'").to_pylist()[
        0
    ]["n"]


def test_tables_agree_with_the_count_kept_by_the_workers(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    emails, reports = factory("emails"), factory("reports", seed=11)
    for queue in (emails, reports):
        queue.add(400)
        queue.let_stall(queue.take(15))
        queue.work(fail=0.1, retry=0.2)
        queue.add(30, delay=3_600_000)
    pipeline = make_pipeline()
    pipeline.run_once()

    assert events(pipeline) == emails.entries_added + reports.entries_added
    truth = emails.outcomes + reports.outcomes
    assert outcomes(pipeline) == truth
    attempts = pipeline.query(
        "select queue, job_id, count(*) as n from silver.attempts group by all"
    ).to_pylist()
    for queue in (emails, reports):
        assert {row["job_id"]: row["n"] for row in attempts if row["queue"] == queue.queue} == queue.attempts
    states = counts(pipeline, "select state as k, count(*) as n from silver.jobs group by 1")
    assert states == {
        "completed": truth["completed"],
        "failed": truth["failed"],
        "delayed": 60,
    }
    for table in ("queue_minute", "queue_hour"):
        figures = pipeline.query(
            f"select sum(completed) c, sum(failed) f, sum(retried) r, sum(stalled) s, sum(attempts) a from gold.{table}"
        ).to_pylist()[0]
        assert [int(figures[key]) for key in "cfrsa"] == [
            truth["completed"],
            truth["failed"],
            truth["retried"],
            truth["stalled"],
            truth.total(),
        ]
    check_percentiles(pipeline)


def check_percentiles(pipeline: Pipeline) -> None:
    rows = pipeline.query(
        "select queue, date_trunc('minute', ended_at) as minute, wait_ms, run_ms from silver.attempts"
    ).to_pylist()
    for figure in pipeline.query("select * from gold.queue_minute").to_pylist():
        inside = [row for row in rows if (row["queue"], row["minute"]) == (figure["queue"], figure["minute"])]
        for what in ("wait", "run"):
            values = [row[f"{what}_ms"] for row in inside if row[f"{what}_ms"] is not None]
            wanted = np.percentile(values, [50, 95, 99])
            assert [figure[f"{what}_p{p}_ms"] for p in (50, 95, 99)] == pytest.approx(list(wanted))


def test_hashes_have_the_worker_of_an_attempt_and_the_reason_of_its_retry(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    queue = factory("filled")
    queue.add(60)
    queue.work(fail=0.2, retry=0.4)
    pipeline = make_pipeline()
    pipeline.run_once()
    rows = pipeline.query("select outcome, error, worker, attempt from silver.attempts").to_pylist()
    assert {row["error"] for row in rows if row["outcome"] == "completed"} == {None}
    assert all(row["error"].startswith("order ") for row in rows if row["outcome"] == "failed")
    assert all(row["worker"] == "factory-1" for row in rows if row["outcome"] in ("completed", "failed"))
    patterns = counts(pipeline, "select pattern as k, sum(count)::int as n from gold.errors group by 1")
    assert patterns["order <n> not found"] == queue.outcomes["failed"]


def test_a_second_run_adds_only_what_is_new(make_pipeline: Pipelines, factory: Factories) -> None:
    queue = factory("again")
    queue.add(50)
    queue.work(limit=20)
    make_pipeline().run_once()
    assert make_pipeline().run_once().events == 0
    queue.work(retry=0.5)
    pipeline = make_pipeline()
    pipeline.run_once()
    assert events(pipeline) == queue.entries_added
    assert outcomes(pipeline) == queue.outcomes
    minutes = pipeline.query("select sum(attempts)::int as n from gold.queue_minute").to_pylist()[0]["n"]
    assert minutes == queue.outcomes.total()


def test_a_finished_job_that_is_retried_goes_on_counting(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    from toril.commands.manage import reprocess

    queue = factory("second")
    queue.add(5)
    queue.work(fail=1.0)
    to_silver(make_pipeline())
    for job_id in list(queue.attempts):
        queue.transport.run(reprocess(queue.keys, job_id))
    queue.work()
    pipeline = make_pipeline()
    to_silver(pipeline)
    rows = pipeline.query(
        "select job_id, attempt, outcome, name from silver.attempts order by all"
    ).to_pylist()
    assert [(row["attempt"], row["outcome"]) for row in rows] == [(1, "failed"), (2, "completed")] * 5
    assert all(row["name"] for row in rows)
    assert counts(pipeline, "select state as k, count(*) as n from silver.jobs group by 1") == {
        "completed": 5
    }


def test_a_lost_checkpoint_neither_doubles_nor_loses_rows(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("lost")
    checkpoint = tmp_path / "checkpoint"
    queue.add(40)
    queue.work()
    make_pipeline(checkpoint=str(checkpoint)).ingest()
    shutil.rmtree(checkpoint)
    queue.add(10)
    queue.work()
    pipeline = make_pipeline(checkpoint=str(checkpoint))
    to_silver(pipeline)
    assert events(pipeline) == queue.entries_added
    assert outcomes(pipeline) == queue.outcomes


@pytest.mark.parametrize("entries", ["commits", "commits and offsets", "commits without checksums"])
def test_a_batch_that_is_replayed_is_not_added_twice(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Path, entries: Any
) -> None:
    queue = factory("replayed")
    checkpoint = tmp_path / "checkpoint"  # of the user's own, and so the same in all runs
    queue.add(40)
    make_pipeline(checkpoint=str(checkpoint)).ingest()
    queue.work(limit=10)
    make_pipeline(checkpoint=str(checkpoint)).ingest()
    for folder in entries.removesuffix(" without checksums").split(" and "):
        (checkpoint / folder / "1").unlink()
        if not entries.endswith("checksums"):
            (checkpoint / folder / ".1.crc").unlink(missing_ok=True)
    queue.work()
    pipeline = make_pipeline(checkpoint=str(checkpoint))
    to_silver(pipeline)
    assert events(pipeline) == queue.entries_added
    assert outcomes(pipeline) == queue.outcomes
    ids = pipeline.query("select count(distinct id) as n from bronze.events").to_pylist()[0]["n"]
    assert ids == queue.entries_added


def test_reading_that_begins_with_the_latest_goes_on_from_there_in_later_runs(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    queue = factory("latest")
    queue.add(40)
    make_pipeline(starting="latest").ingest()
    before = queue.entries_added
    queue.add(10)
    pipeline = make_pipeline(starting="latest")
    pipeline.ingest()
    assert events(pipeline) == queue.entries_added - before


def test_events_plus_gaps_are_all_events_and_hashes_complete_the_gaps(
    make_pipeline: Pipelines, factory: Factories, valkey: Server
) -> None:
    queue = factory("gaps")
    queue.add(100)
    queue.work(limit=30)
    to_silver(make_pipeline())
    queue.work(fail=0.3)
    with valkey.client() as client:
        client.xtrim(queue.keys.events, maxlen=20, approximate=False)
    pipeline = make_pipeline()
    to_silver(pipeline)
    lost = pipeline.query("select sum(lost)::int as n, count(*) as c from silver.gaps").to_pylist()[0]
    assert events(pipeline) + lost["n"] == queue.entries_added
    assert (lost["n"] > 0, lost["c"]) == (True, 1)
    gap = pipeline.query("select ts, from_id, until_id from silver.gaps").to_pylist()[0]
    first = "select min(ts) as ts from bronze.events where event <> 'toril.gap' and ts > make_timestamptz(?)"
    after = pipeline.lake.query(first, [int(gap["from_id"].split("-")[0]) * 1000]).to_pylist()
    assert gap["ts"] == after[0]["ts"], "a gap has the time of the first event after it"
    assert outcomes(pipeline) == queue.outcomes, "every end was in the events or in the hashes"
    sources = counts(pipeline, "select source as k, count(*) as n from silver.attempts group by 1")
    assert sources["hash"] > 0
    states = counts(pipeline, "select state as k, count(*) as n from silver.jobs group by 1")
    assert states == {key: queue.outcomes[key] for key in ("completed", "failed")}
    before = outcomes(pipeline)
    to_silver(make_pipeline())
    assert outcomes(pipeline) == before


async def test_of_a_queue_that_was_obliterated_nobody_knows_how_many_events_were_lost(
    valkey_url: str, prefix: str, make_pipeline: Pipelines
) -> None:
    pipeline = make_pipeline()
    async with Queue("gone", redis=valkey_url, prefix=prefix) as queue:
        await queue.add_bulk([("work", {})] * 20)
        await asyncio.to_thread(pipeline.ingest)
        await queue.add_bulk([("work", {})] * 20)  # which nobody reads
        await queue.pause()
        await queue.obliterate(force=True)
        await queue.add("work", {})
        added_at = await asyncio.to_thread(
            lambda: to_silver(pipeline).query("select max(ts) as ts from bronze.events")
        )
    gaps = pipeline.query("select lost, reason, ts from silver.gaps").to_pylist()
    assert [(gap["lost"], gap["reason"]) for gap in gaps] == [(None, "recreated")]
    assert added_at.to_pylist()[0]["ts"] - gaps[0]["ts"] < timedelta(seconds=5)
    status = pipeline.status()
    assert (status.lost, status.uncounted_gaps) == (0, 1)


def test_a_refinement_that_was_cut_off_is_finished_not_repeated(
    make_pipeline: Pipelines, factory: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toril.spark.pipeline.silver import refiner

    queue = factory("cut")
    queue.add(50)
    queue.work(retry=0.3)
    pipeline = make_pipeline()
    pipeline.ingest()
    real = refiner.SilverRefiner._commit
    done: list[str] = []

    def fail_at_jobs(self: Any, name: str, *rest: Any, **more: Any) -> Any:
        if name == "silver/jobs" and not done:
            done.append(name)
            raise KeyboardInterrupt
        return real(self, name, *rest, **more)

    monkeypatch.setattr(refiner.SilverRefiner, "_commit", fail_at_jobs)
    with pytest.raises(KeyboardInterrupt):
        pipeline.refine()
    queue.add(20)
    queue.work()
    again = make_pipeline()
    to_silver(again)
    assert done
    assert outcomes(again) == queue.outcomes
    assert events(again) == queue.entries_added


def test_worker_reports_become_workers_and_alerts(make_pipeline: Pipelines, factory: Factories) -> None:
    queue = factory("reported")
    queue.add(10)
    queue.work()
    queue.report("w-1", heartbeats_failed=20)
    pipeline = make_pipeline()
    pipeline.run_once()
    worker = pipeline.query("select * from gold.workers").to_pylist()[0]
    assert (worker["worker"], worker["in_hand"], worker["heartbeat_failure_rate"]) == ("w-1", 2, 0.2)
    rules = {row["rule"] for row in pipeline.query("select * from gold.alerts").to_pylist()}
    assert rules == {"heartbeat_failures"}


def test_compacting_changes_no_row(
    make_pipeline: Pipelines, factory: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = factory("compact")
    pipeline = make_pipeline(keep_files_hours=0)
    for _ in range(3):
        queue.add(10)
        queue.work()
        to_silver(pipeline)
    from toril.spark.pipeline.files import maintain

    monkeypatch.setattr(maintain, "_MANY_FILES", 2)
    done = {one.table: one for one in pipeline.maintain()}
    assert done["bronze/events"].compacted >= 2
    assert sum(one.removed for one in done.values()) > 0
    assert events(pipeline) == queue.entries_added
    queue.add(5)
    queue.work()
    fresh = make_pipeline()
    to_silver(fresh)
    assert outcomes(fresh) == queue.outcomes


def test_a_pipeline_that_is_up_follows_the_queue_until_it_is_stopped(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    queue = factory("up")
    queue.add(30)
    pipeline = make_pipeline(interval=0.1, refine_every=0.2, figures_every=0.5)
    stop, refined = threading.Event(), threading.Event()

    def watch(_: Any) -> None:
        if outcomes(pipeline) == queue.outcomes:
            refined.set()

    queue.work()
    thread = threading.Thread(target=pipeline.up, args=(stop, watch))
    thread.start()
    try:
        assert refined.wait(120)
        refined.clear()
        queue.add(10)
        queue.work(retry=0.5)
        assert refined.wait(120)
    finally:
        stop.set()
        thread.join()
    assert events(pipeline) == queue.entries_added


def test_status_shows_how_far_the_tables_are(make_pipeline: Pipelines, factory: Factories) -> None:
    queue = factory("status")
    queue.add(10)
    pipeline = make_pipeline()
    assert [(one.queue, one.behind) for one in pipeline.status().queues] == [("status", 20)]
    to_silver(pipeline)
    queue.add(3)
    status = pipeline.status()
    assert [(one.queue, one.behind) for one in status.queues] == [("status", 6)]
    rows = {one.table: one.rows for one in status.tables}
    assert (rows["bronze/events"], rows["silver/jobs"]) == (20, 10)
    assert json.loads(json.dumps(status.as_dict(), default=str))["silver_behind"] == 0


def test_status_without_a_server_says_why(tmp_path: Path) -> None:
    options = PipelineOptions(redis="redis://127.0.0.1:1", lake=tmp_path)
    assert "cannot be reached" in (Pipeline(options).status().problem or "")


def test_a_table_of_a_newer_version_is_refused(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("newer")
    queue.add(1)
    to_silver(make_pipeline())
    Lake(tmp_path / "lake").table("silver/attempts").delta.alter.set_table_properties(
        {"toril.schemaVersion": "99"}, raise_if_not_exists=False
    )
    with pytest.raises(LakeTooNew, match="upgrade toril"):
        Lake(tmp_path / "lake").read("silver/attempts")


def test_a_lake_says_what_is_wrong(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(TableMissing, match="toril pipeline run` first"):
        lake.read("gold/alerts")
    assert lake.query("select * from gold.alerts").num_rows == 0
    with pytest.raises(LakeError, match="the query failed"):
        lake.query("select nothing from gold.alerts")
    with pytest.raises(ValueError, match="there is no table"):
        lake.read("gold/rush")


def test_spark_without_java_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from toril.errors import SparkUnavailable
    from toril.spark.pipeline.session import check_java

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SparkUnavailable, match="openjdk-17"):
        check_java()


def test_alerts_of_long_ago_stay_and_those_of_the_week_are_found_anew(
    make_pipeline: Pipelines, factory: Factories
) -> None:
    queue = factory("loud")
    queue.add(40)
    queue.work(retry=0.9)
    pipeline = make_pipeline()
    log = pipeline.lake.ensure("gold/alerts")
    days = {"old": 30, "recent": 1}
    rows = [
        {
            **dict.fromkeys(log.spec.schema.names),
            "rule": rule,
            "queue": "loud",
            "subject": "",
            "raised_at": datetime.now(UTC) - timedelta(days=age),
        }
        for rule, age in days.items()
    ]
    file = write_file(pipeline.lake, "gold/alerts", pa.Table.from_pylist(rows, schema=log.spec.schema), {})
    log.commit([file], application="test", version=1)
    pipeline.run_once()
    found = {row["rule"] for row in pipeline.query("select rule from gold.alerts").to_pylist()}
    assert found == {"old", "retries"}, "what no rule finds any more is gone, unless it is older than a week"


def test_a_run_that_another_pipeline_forestalled_begins_its_step_again(
    make_pipeline: Pipelines, factory: Factories, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = factory("twice")
    queue.add(20)
    queue.work(retry=0.3)
    real, refused = LakeTable.commit, set[str]()

    def refuse_once(self: LakeTable, *words: Any, **more: Any) -> None:
        if self.spec.name in ("bronze/events", "silver/attempts") and self.spec.name not in refused:
            refused.add(self.spec.name)
            raise CommitFailedError("somebody was faster")
        real(self, *words, **more)

    monkeypatch.setattr(LakeTable, "commit", refuse_once)
    pipeline = make_pipeline()
    pipeline.run_once()
    assert len(refused) == 2
    assert events(pipeline) == queue.entries_added
    assert outcomes(pipeline) == queue.outcomes
