"""Transforms against an independent model: the same events, walked through in plain Python."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tests.spark.model import attempts_of
from toril.errors import InvalidOption
from toril.lake.tables import ALERTS, ATTEMPTS, EVENTS, QUEUE_MINUTE, SILVER_JOBS
from toril.spark.sources.events import SOURCE_SCHEMA
from toril.spark.transforms import (
    DEFAULT_RULES,
    Rule,
    alerts,
    attempts,
    errors,
    gaps,
    job_timelines,
    jobs,
    orphans,
    queue_hour,
    queue_minute,
    workers,
)
from toril.spark.transforms.job_timeline import turning_points
from toril.spark.transforms.rows import attempts_table, jobs_table
from toril.spark.transforms.step_columns import STEP

START = datetime(2026, 3, 1, 23, 58, tzinfo=UTC)


def random_events(seed: int, count: int) -> list[dict[str, Any]]:
    """Lives of jobs with every kind of turn, in one stream."""
    chance = random.Random(seed)
    clock, seq, events = int(START.timestamp() * 1000), 0, []

    def say(job: str, event: str, **fields: object) -> None:
        nonlocal clock, seq
        if chance.random() < 0.5:
            clock, seq = clock + chance.randrange(1, 2000), 0
        else:
            seq += 1
        events.append({"job_id": job, "event": event, "ms": clock, "seq": seq, **fields})

    waiting, active = [], []
    for number in range(count):
        job = f"job-{number}"
        say(job, "added", name=f"kind-{number % 2}")
        if chance.random() < 0.2:
            say(job, "delayed")
        say(job, "waiting")
        waiting.append(job)
        for _ in range(chance.randrange(4)):
            if waiting and chance.random() < 0.6:
                job = waiting.pop(0)
                say(job, "active", prev="waiting")
                active.append(job)
            elif active:
                end_one(active.pop(chance.randrange(len(active))), chance, say, waiting)
    return events


def end_one(job: Any, chance: Any, say: Any, waiting: Any) -> None:
    turn = chance.random()
    if turn < 0.5:
        say(job, "progress", data="50")
        say(job, "completed", returnvalue="1")
    elif turn < 0.65:
        say(job, "failed", failed_reason=f"order {chance.randrange(99)} is gone")
        if chance.random() < 0.3:
            say(job, "waiting", prev="failed")
            waiting.append(job)
    elif turn < 0.8:
        say(job, "waiting", prev="active")
        waiting.append(job)
    elif turn < 0.9:
        say(job, "waiting", prev="active")
        say(job, "stalled")
        waiting.append(job)
    else:
        say(job, "delayed")
        say(job, "waiting", prev="delayed")
        waiting.append(job)


def events_frame(spark: SparkSession, rows: Any) -> Any:
    full = [
        {
            **dict.fromkeys(SOURCE_SCHEMA.names),
            "queue": "q",
            "id": f"{row['ms']}-{row['seq']}",
            "ts": datetime.fromtimestamp(row["ms"] / 1000, UTC),
            **{key: value for key, value in row.items() if key != "ms"},
        }
        for row in rows
    ]
    return spark.createDataFrame(full, from_arrow_schema(SOURCE_SCHEMA))


def no_jobs(spark: SparkSession) -> Any:
    return spark.createDataFrame([], from_arrow_schema(SILVER_JOBS.schema))


def as_tuples(frame: Any) -> Any:
    columns = [F.unix_millis(name).alias(name) for name in ("ready_at", "active_at", "ended_at")]
    return sorted(tuple(row) for row in frame.select("job_id", "attempt", "outcome", *columns).collect())


@pytest.mark.parametrize("seed", [1, 2])
def test_attempts_are_those_of_an_independent_walk(spark: SparkSession, seed: int) -> None:
    events = random_events(seed, 150)
    story = job_timelines(events_frame(spark, events), no_jobs(spark))
    assert as_tuples(attempts(story)) == sorted(attempts_of(events))
    assert attempts(story).columns == ATTEMPTS.schema.names
    assert jobs(story).columns == SILVER_JOBS.schema.names


def test_events_cut_into_batches_give_the_same_attempts(spark: SparkSession) -> None:
    events = random_events(3, 120)
    state, found = no_jobs(spark), []
    cuts = [0, 90, 91, 250, len(events)]
    while events[cuts[2]]["event"] == "stalled":
        cuts[2] += 1  # the server says `waiting` and `stalled` in one step; no batch ends between them
    for start, end in itertools.pairwise(cuts):
        story = job_timelines(events_frame(spark, events[start:end]), state)
        found += as_tuples(attempts(story))
        done = jobs(story)
        # Jobs that are finished are touched again in these lives: all are given on, as the refiner does for those.
        state = spark.createDataFrame(done.collect(), done.schema)
    assert sorted(found) == sorted(attempts_of(events))
    states = Counter(row.state for row in state.collect())
    assert sum(states.values()) == 120


def test_a_job_id_that_is_used_again_starts_again(spark: SparkSession) -> None:
    turns = ["added", "waiting", "active", "completed"] * 2
    events = [{"job_id": "j", "event": turn, "ms": 1000 * n, "seq": 0} for n, turn in enumerate(turns, 1)]
    rows = as_tuples(attempts(job_timelines(events_frame(spark, events), no_jobs(spark))))
    assert [row[1] for row in rows] == [1, 1]


def test_timelines_that_lack_their_start_are_listed(spark: SparkSession) -> None:
    events = [
        {"job_id": "new", "event": "added", "ms": 1, "seq": 0},
        {"job_id": "old", "event": "waiting", "prev": "failed", "ms": 2, "seq": 0},
    ]
    assert [
        row.job_id for row in orphans(job_timelines(events_frame(spark, events), no_jobs(spark))).collect()
    ] == ["old"]


def test_an_attempt_whose_beginning_was_lost_is_known_by_its_end(spark: SparkSession) -> None:
    turns = [
        ("waiting", None),
        ("completed", "active"),
        ("waiting", "failed"),
        ("active", "waiting"),
        ("failed", "active"),
    ]
    events = [
        {"job_id": "j", "event": turn, "prev": prev, "ms": 1000 * n, "seq": 0}
        for n, (turn, prev) in enumerate(turns, 1)
    ]
    rows = as_tuples(attempts(job_timelines(events_frame(spark, events), no_jobs(spark))))
    assert rows == [("j", 1, "completed", None, None, 2000), ("j", 2, "failed", 3000, 4000, 5000)]


def test_gap_rows_become_gaps(spark: SparkSession) -> None:
    row = {
        "job_id": None,
        "event": "toril.gap",
        "ms": 5,
        "seq": 0,
        "lost": 12,
        "extra": '{"reason":"trimmed","until":"9-0"}',
    }
    found = gaps(events_frame(spark, [row, {"job_id": "a", "event": "added", "ms": 6, "seq": 0}])).collect()
    assert [(one.lost, one.reason, one.from_id, one.until_id) for one in found] == [
        (12, "trimmed", "5-0", "9-0")
    ]


def test_figures_sum_up_and_percentiles_equal_numpys(spark: SparkSession) -> None:
    events = random_events(5, 300)
    truth = attempts_of(events)
    frame = attempts(job_timelines(events_frame(spark, events), no_jobs(spark)))
    minutes = queue_minute(frame).collect()
    assert queue_minute(frame).columns == QUEUE_MINUTE.schema.names
    assert sum(row.attempts for row in minutes) == len(truth)
    by_minute = defaultdict(list)
    for one in truth:
        by_minute[one[5] // 60_000].append(one)
    for row in queue_minute(frame).withColumn("at", F.unix_millis("minute")).collect():
        inside = by_minute[row["at"] // 60_000]
        assert row.completed == sum(one[2] == "completed" for one in inside)
        assert row.stalled == sum(one[2] == "stalled" for one in inside)
        for name, values in (
            ("run", [one[5] - one[4] for one in inside]),
            ("wait", [one[4] - one[3] for one in inside if one[3] is not None]),
        ):
            if values:
                wanted = np.percentile(values, [50, 95, 99])
                got = [row[f"{name}_p{p}_ms"] for p in (50, 95, 99)]
                assert got == pytest.approx(list(wanted), rel=1e-12)
    hours = queue_hour(frame).collect()
    assert sum(row.attempts for row in hours) == len(truth)


def test_messages_that_differ_in_details_have_one_fingerprint(spark: SparkSession) -> None:
    messages = [
        "order 17 of user 'bob' not found at https://x.example/a?b=1",
        "order 4711 of user 'alice' not found at https://y.example/",
        "job 3f2b8c1e-0000-4000-8000-123456789abc timed out after 30.5 s\n  at stack 1",
        "job 11111111-2222-4333-8444-555555555555 timed out after 3 s\n  at stack 2",
        "disk full",
    ]
    at = START.replace(tzinfo=UTC)
    rows = [
        {
            **dict.fromkeys(ATTEMPTS.schema.names),
            "queue": "q",
            "job_id": str(n),
            "name": "k",
            "error": text,
            "ended_at": at + timedelta(seconds=n),
            "day": at.date(),
        }
        for n, text in enumerate(messages)
    ]
    found = errors(spark.createDataFrame(rows, from_arrow_schema(ATTEMPTS.schema))).collect()
    assert {row.pattern: row["count"] for row in found} == {
        "order <n> of user <text> not found at <url>": 2,
        "job <uuid> timed out after <n> s": 2,
        "disk full": 1,
    }
    assert all(row["count"] == row.jobs for row in found)


def test_an_error_has_one_fingerprint_with_and_without_its_class(spark: SparkSession) -> None:
    messages = [
        "connect ECONNREFUSED 10.0.0.1:443",
        "Error: connect ECONNREFUSED 10.0.0.2:443",
        "TransientError: connect ECONNREFUSED 10.0.0.3:443",
        "toril.errors.TransientError: connect ECONNREFUSED 10.0.0.4:443",
        "TypeError [ERR_NET]: connect ECONNREFUSED 10.0.0.5:443",
    ]
    others = ["KeyError: 'name'", "order: connect refused"]  # what is before the colon tells something
    rows = [
        {
            **dict.fromkeys(ATTEMPTS.schema.names),
            "queue": "q",
            "job_id": str(n),
            "error": text,
            "ended_at": START,
            "day": START.date(),
        }
        for n, text in enumerate([*messages, *others])
    ]
    found = errors(spark.createDataFrame(rows, from_arrow_schema(ATTEMPTS.schema))).collect()
    assert {row.pattern: row["count"] for row in found} == {
        "connect ECONNREFUSED <n>.<n>:<n>": len(messages),
        "KeyError: <text>": 1,
        "order: connect refused": 1,
    }


def minute_row(queue: Any, **figures: Any) -> Any:
    return {
        **dict.fromkeys(QUEUE_MINUTE.schema.names),
        "queue": queue,
        "minute": START,
        "attempts": 100,
        **figures,
    }


def test_alerts_stand_where_thresholds_are_crossed(spark: SparkSession) -> None:
    minutes = spark.createDataFrame(
        [
            minute_row("calm", stall_rate=0.10, retry_rate=0.10, completed=5),
            minute_row("wild", stall_rate=0.11, retry_rate=0.5, completed=80),
            minute_row("tiny", stall_rate=1.0, retry_rate=1.0, attempts=3),
        ],
        from_arrow_schema(QUEUE_MINUTE.schema),
    )
    reports = spark.createDataFrame(
        [
            ("wild", "w1", START, 1, 90, 10, 10, 0, 1),
            ("wild", "w2", START, 1, 99, 1, 8, 2, 1),
            ("wild", "w3", START, 0, 0, 0, 0, 0, 1),
        ],
        "queue string, worker string, ts timestamp, in_hand long, heartbeats_ok long, heartbeats_failed long, "
        "sweeps_done long, sweeps_skipped long, memory_bytes long",
    )
    mine = Rule(
        name="busy",
        sql="select queue, minute as raised_at, completed as value from queue_minute",
        threshold=50,
        message="busy",
    )
    found = alerts(spark, {"queue_minute": minutes, "workers": workers(reports)}, (*DEFAULT_RULES, mine))
    assert found.columns == ALERTS.schema.names
    assert {(row.rule, row.queue, row.subject) for row in found.collect()} == {
        ("stalled_jobs", "wild", ""),
        ("retries", "wild", ""),
        ("heartbeat_failures", "wild", "w1"),
        ("sweeps_skipped", "wild", "w2"),
        ("busy", "wild", ""),
    }


def test_a_rule_that_fails_names_itself(spark: SparkSession) -> None:
    rule = Rule(name="broken", sql="select nothing from queue_minute", threshold=1, message="")
    minutes = spark.createDataFrame([], from_arrow_schema(QUEUE_MINUTE.schema))
    with pytest.raises(InvalidOption, match="rule broken"):
        alerts(spark, {"queue_minute": minutes}, [rule])


def test_events_schema_is_what_sources_give(spark: SparkSession) -> None:
    assert [name for name in EVENTS.schema.names if name != "day"] == SOURCE_SCHEMA.names


def steps_table(events: list[dict[str, Any]]) -> pa.Table:
    """What a task gets, without Spark."""
    rows = [
        {
            "queue": "q",
            "ts": datetime.fromtimestamp(one["ms"] / 1000, UTC),
            **{name: one.get(name) for name in ("job_id", "seq", "event", "prev", "failed_reason")},
            "step_name": one.get("name"),
        }
        for one in events
    ]
    return pa.Table.from_pylist(rows, schema=STEP)


def test_the_order_in_which_rows_arrive_changes_nothing() -> None:
    events = [one for one in random_events(8, 200) if one["event"] != "progress"]
    in_order = attempts_table(turning_points(steps_table(events)))
    random.Random(1).shuffle(events)
    shuffled = attempts_table(turning_points(steps_table(events)))
    keys = [("job_id", "ascending"), ("ended_at", "ascending"), ("attempt", "ascending")]
    assert in_order.num_rows > 100
    assert in_order.sort_by(keys).equals(shuffled.sort_by(keys))


def attempts_from(events: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Attempts of one job: events are (event, prev, reason), a second apart."""
    rows = [
        {"job_id": "j", "event": event, "prev": prev, "failed_reason": reason, "ms": 1000 * n, "seq": 0}
        for n, (event, prev, reason) in enumerate(events, 1)
    ]
    table = attempts_table(turning_points(steps_table(rows)))
    return [(row["attempt"], row["outcome"], row["error"]) for row in table.sort_by("ended_at").to_pylist()]


STALL = [("active", "waiting", None), ("waiting", "active", None), ("stalled", None, None)]


@pytest.mark.parametrize(
    ("reason", "ran"),
    [
        ("job stalled more than allowable limit", False),
        ("job started more than allowable limit", False),
        ("child bull:emails:17 failed", False),
        ("child {b}:my emails:order 17 failed", False),
        ("child process failed", True),
        ("child worker: exit: 1 failed", True),
        ("the job stalled more than allowable limit of patience", True),
        ("child 17 of 20 failed", True),
    ],
)
def test_a_job_that_is_failed_without_being_run_has_no_attempt_for_it(reason: str, ran: bool) -> None:
    taken = [("active", "waiting", None), ("failed", "active", reason)]
    stalled = [(1, "stalled", None)]
    assert attempts_from([("added", None, None), *STALL, *taken]) == [
        *stalled,
        *([(2, "failed", reason)] if ran else []),
    ]
    points = turning_points(
        steps_table([{"job_id": "j", "event": "failed", "failed_reason": reason, "ms": 1, "seq": 0}])
    )
    assert [(row["state"], row["error"]) for row in jobs_table(points).to_pylist()] == [("failed", reason)]


def test_what_an_earlier_use_of_an_id_left_is_not_attributed_to_the_next_one() -> None:
    turns = ["added", "waiting", "active", "waiting", "stalled", "active", "completed", "added", "waiting"]
    rows = [{"job_id": "j", "event": turn, "ms": 1000 * n, "seq": 0} for n, turn in enumerate(turns, 1)]
    (last,) = jobs_table(turning_points(steps_table(rows))).to_pylist()
    assert (last["attempt"], last["stalls"], last["completions"], last["active_at"]) == (0, 0, 0, None)
