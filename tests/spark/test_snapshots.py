"""Snapshots of jobs, log lines, entries and dead letters: each once, whatever is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.makers import Factories, Pipelines
from toril.lake import Lake, LakeTooNew
from toril.lake.delta_table import LakeTable
from toril.protocol.keys import ListKeys, StreamKeys
from toril.spark.pipeline import Pipeline


def to_snapshots(pipeline: Pipeline) -> int:
    pipeline.ingest()
    taken = pipeline.take_snapshots()
    pipeline.refine()
    return taken


def rows(pipeline: Pipeline, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pipeline.query(sql).to_pylist()
    return found


def write_logs(server: Server, queue: Factory, ids: list[str]) -> None:
    with server.client() as client:
        for job_id in ids:
            client.rpush(queue.keys.logs(job_id), f"{job_id} begins", f"{job_id} ends")


def test_jobs_that_ended_leave_their_hash_and_their_log_lines(
    make_pipeline: Pipelines, factory: Factories, valkey: Server
) -> None:
    queue = factory("ended")
    ids = queue.add(30)
    write_logs(valkey, queue, ids)
    queue.work(limit=20, fail=0.3)
    assert to_snapshots(make_pipeline()) == 20
    assert to_snapshots(make_pipeline()) == 0
    queue.work()
    pipeline = make_pipeline()
    assert to_snapshots(pipeline) == 10
    jobs = rows(pipeline, "select state, data, failed_reason, worker from bronze.jobs")
    assert sum(job["state"] == "failed" for job in jobs) == queue.outcomes["failed"]
    assert all(job["failed_reason"] for job in jobs if job["state"] == "failed")
    assert {job["worker"] for job in jobs} == {"factory-1"}
    assert all(json.loads(job["data"]) for job in jobs)
    lines = rows(pipeline, "select job_id, line, text from bronze.logs")
    wanted = {(job, line, f"{job} {word}") for job in ids for line, word in enumerate(("begins", "ends"))}
    assert len(lines) == len(wanted)
    assert {(one["job_id"], one["line"], one["text"]) for one in lines} == wanted


def test_a_snapshot_that_was_cut_off_is_finished_not_repeated(
    make_pipeline: Pipelines, factory: Factories, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = factory("cut")
    write_logs(valkey, queue, queue.add(10))
    queue.work()
    real = LakeTable.commit

    def fail_at_jobs(self: LakeTable, *words: Any, **more: Any) -> None:
        if self.spec.name == "bronze/jobs":
            raise KeyboardInterrupt
        real(self, *words, **more)

    with monkeypatch.context() as broken:
        broken.setattr(LakeTable, "commit", fail_at_jobs)
        with pytest.raises(KeyboardInterrupt):
            to_snapshots(make_pipeline())
    write_logs(valkey, queue, queue.add(5))
    queue.work()
    pipeline = make_pipeline()
    assert to_snapshots(pipeline) == 15  # what was begun, and the rest
    assert rows(pipeline, "select count(*) as n, count(distinct job_id) as j from bronze.jobs") == [
        {"n": 15, "j": 15}
    ]
    assert rows(pipeline, "select count(*) as n from bronze.logs") == [{"n": 30}]


def test_log_lines_of_a_table_that_was_rolled_back_are_read_again(
    make_pipeline: Pipelines, factory: Factories, valkey: Server
) -> None:
    queue = factory("lines")
    for _ in range(3):
        write_logs(valkey, queue, queue.add(4))
        queue.work()
        to_snapshots(make_pipeline())
    commits = sorted(Path(make_pipeline().lake.location("bronze/logs"), "_delta_log").glob("*.json"))
    for commit in commits[-2:]:
        commit.unlink()
    pipeline = make_pipeline()
    assert rows(pipeline, "select count(*) as n from bronze.logs") == [{"n": 8}]
    to_snapshots(pipeline)
    assert rows(pipeline, "select count(*) as n, count(distinct text) as t from bronze.logs") == [
        {"n": 24, "t": 24}
    ]
    assert rows(pipeline, "select count(*) as n, count(distinct job_id) as j from bronze.jobs") == [
        {"n": 12, "j": 12}
    ]


def test_after_a_replay_no_job_is_taken_twice(make_pipeline: Pipelines, factory: Factories) -> None:
    queue = factory("replayed")
    queue.add(8)
    queue.work()
    pipeline = make_pipeline()
    to_snapshots(pipeline)
    queue.add(4)
    queue.work()
    pipeline.ingest()
    pipeline.replay()
    assert pipeline.take_snapshots() == 0
    assert rows(pipeline, "select count(*) as n, count(distinct job_id) as j from bronze.jobs") == [
        {"n": 12, "j": 12}
    ]


def envelope(number: int, **more: Any) -> str:
    words = {"job_id": f"j-{number}", "task_type": "navigate", "payload": {"n": number}, "attempts": 0}
    return json.dumps({**words, "max_attempts": 5, "meta": {"enqueue_ts": "2026-03-01T12:00:00Z"}, **more})


def test_entries_and_dead_letters_are_stored_once(
    make_pipeline: Pipelines, valkey: Server, prefix: str
) -> None:
    stream, line = StreamKeys("jobs.browser", prefix), ListKeys("mail", prefix)
    pipeline = make_pipeline(stream_prefix=prefix)
    with valkey.client() as client:
        for number in range(5):
            client.xadd(stream.stream, {"envelope": envelope(number)})
            client.lpush(line.queue, envelope(number))
        client.xadd(stream.dlq, {"envelope": envelope(9, dlq_reason="permanent_error", last_error="gone")})
        client.xadd(line.dlq, {"envelope": "no envelope at all"})
        assert pipeline.take_snapshots() == 12
        assert pipeline.take_snapshots() == 0
        client.xadd(stream.stream, {"envelope": envelope(6)})
        client.lpop(line.queue)
        client.lpush(line.queue, envelope(1, attempts=1))
        assert make_pipeline(stream_prefix=prefix).take_snapshots() == 2
        client.delete(stream.dlq)
        client.xadd(stream.dlq, {"envelope": envelope(10)}, id="5-0")
        assert pipeline.take_snapshots() == 1
    live = rows(pipeline, "select kind, count(*) as n from bronze.stream_entries group by 1 order by 1")
    assert live == [{"kind": "list", "n": 6}, {"kind": "stream", "n": 6}]
    dead = rows(
        pipeline, "select kind, job_id, dlq_reason, raw from bronze.dlq_entries order by kind, ts desc"
    )
    assert [(one["kind"], one["job_id"]) for one in dead] == [
        ("list", None),
        ("stream", "j-9"),
        ("stream", "j-10"),
    ]
    assert dead[0]["raw"] == "no envelope at all"
    assert dead[1]["dlq_reason"] == "permanent_error"


@pytest.mark.parametrize("table", ["jobs", "logs"])
def test_snapshots_of_a_newer_version_are_left_alone(
    make_pipeline: Pipelines, factory: Factories, tmp_path: Any, table: str
) -> None:
    queue = factory("newer")
    queue.add(1)
    queue.work()
    to_snapshots(make_pipeline())
    log = Lake(tmp_path / "lake").table(f"bronze/{table}")
    log.delta.alter.set_table_properties({"toril.schemaVersion": "99"}, raise_if_not_exists=False)
    with pytest.raises(LakeTooNew, match="upgrade toril"):
        make_pipeline().take_snapshots()
