"""The lake without Spark: positions, files, commits, and the page about it."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, ClassVar
from xml.etree.ElementTree import fromstring

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from toril.lake import Lake, TableMissing, write_report
from toril.lake._report_sections import alert_list, by_severity
from toril.lake.report import render
from toril.lake.tables import TABLES
from toril.plots import Series, bands, sparkline, stacked_bars, timeline
from toril.plots.time_plots import _time_ticks
from toril.spark.pipeline.bronze.stream_positions import committed_position, position_marks
from toril.spark.pipeline.files.maintain import Maintainer
from toril.spark.pipeline.files.parquet_files import write_file
from toril.spark.sources.positions import ORIGIN, Position, fair_shares, split_by_time, stretch

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOSTILE = "<script>alert(1)</script>\"'&"


def put(lake: Any, name: str, rows: Any, **partition: Any) -> Any:
    log = lake.ensure(name)
    file = write_file(lake, name, pa.Table.from_pylist(rows, schema=log.spec.schema), partition)
    log.commit([file], application="test", version=log.version + 1)
    return log


def minute(queue: Any, at: Any, **figures: Any) -> Any:
    names = TABLES["gold/queue_minute"].schema.names
    counts = dict.fromkeys(("completed", "failed", "retried", "stalled", "suspended", "attempts"), 3)
    return {**dict.fromkeys(names), "queue": queue, "minute": at, **counts, "day": at.date(), **figures}


def test_of_two_writers_that_start_from_the_same_version_one_fails(tmp_path: Path) -> None:
    first, second = Lake(tmp_path), Lake(tmp_path)
    logs = [lake.ensure("bronze/rejects") for lake in (first, second)]
    row = {"queue": "q", "id": "1-0", "ts": NOW, "reason": "r", "row": "{}"}
    files = [
        write_file(lake, "bronze/rejects", pa.Table.from_pylist([row], schema=logs[0].spec.schema), {})
        for lake in (first, second)
    ]
    logs[0].commit([files[0]], application="a", version=1)
    with pytest.raises(CommitFailedError):
        logs[1].commit([files[1]], application="a", version=1)
    assert first.read("bronze/rejects").num_rows == 1


def test_files_that_a_killed_driver_left_go_when_nobody_can_be_at_work_with_them(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    row = {"queue": "q", "id": "1-0", "ts": NOW, "reason": "r", "row": "{}"}
    table = pa.Table.from_pylist([row], schema=put(lake, "bronze/rejects", [row]).spec.schema)
    left, staged = (
        tmp_path / "bronze/rejects" / write_file(lake, "bronze/rejects", table, {}).path for _ in "ab"
    )
    os.utime(left, (time.time() - 7200,) * 2)
    assert [one.removed for one in Maintainer(lake, 1).run()] == [1]
    assert (left.exists(), staged.exists()) == (False, True)
    assert lake.read("bronze/rejects").num_rows == 1


def test_a_position_travels_with_the_commit_it_belongs_to(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    log = lake.ensure("bronze/events")
    assert committed_position(log, "q") == ORIGIN
    place = Position("1794780316048-1048575", 12345)
    log.commit(
        [], application="x", version=0, marks=position_marks({"q": place, "old": Position("5-0", None)})
    )
    again = Lake(tmp_path).table("bronze/events")
    assert committed_position(again, "q") == place
    assert committed_position(again, "old") == Position("5-0", None)


def test_filters_on_any_column_find_their_rows(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    put(lake, "gold/queue_minute", [minute("a", NOW), minute("b", NOW)], day="2026-03-01")
    for condition in ("queue = 'a'", "completed = 3", "wait_p50_ms is null", "day = date '2026-03-01'"):
        assert lake.query(f"select * from gold.queue_minute where {condition}").num_rows in (1, 2)


@pytest.mark.parametrize("name", ['"gold"."queue_minute"', 'gold."queue_minute"', "GOLD . Queue_Minute"])
def test_tables_are_found_however_their_names_are_quoted(tmp_path: Path, name: str) -> None:
    lake = Lake(tmp_path)
    put(lake, "gold/queue_minute", [minute("a", NOW)], day="2026-03-01")
    assert lake.query(f"select queue from {name}").to_pylist() == [{"queue": "a"}]


def test_shares_are_fair_and_never_more_than_the_limit() -> None:
    assert fair_shares({"small": 10, "large": 1000, "huge": 5000}, 510) == {
        "small": 10,
        "large": 250,
        "huge": 250,
    }
    chance = random.Random(1)
    for _ in range(200):
        wanted = {str(n): chance.randrange(1, 500) for n in range(chance.randrange(1, 9))}
        limit = chance.randrange(1, 1000)
        shares = fair_shares(wanted, limit)
        assert sum(shares.values()) <= limit
        assert all(shares[queue] <= wanted[queue] for queue in wanted)


def test_pieces_by_time_cover_the_stretch_without_overlap() -> None:
    whole = stretch("q", "k", Position("1000-5", 7), Position("9000-1", 99))
    assert whole is not None
    pieces = split_by_time(whole, "2000-0", 4)
    assert (pieces[0].start, pieces[-1].end) == (whole.start, whole.end)
    assert all(one.end == other.start for one, other in itertools.pairwise(pieces))
    assert len(pieces) == 4


def test_the_page_shows_queues_and_lets_nothing_become_markup(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = [
        minute(
            queue,
            NOW + timedelta(minutes=n),
            wait_p50_ms=1.5,
            wait_p95_ms=20.0,
            wait_p99_ms=1e9,
            run_p50_ms=0.0,
            run_p95_ms=5.0,
            run_p99_ms=6.0,
        )
        for queue in ("emails", HOSTILE)
        for n in (0, 1, 5)
    ]
    put(lake, "gold/queue_minute", rows, day="2026-03-01")
    error = {
        "queue": HOSTILE,
        "fingerprint": "f",
        "pattern": HOSTILE,
        "name": HOSTILE,
        "count": 3,
        "jobs": 1,
        "first_at": NOW,
        "last_at": NOW,
        "sample": HOSTILE,
        "sample_job_id": HOSTILE,
        "day": NOW.date(),
    }
    put(lake, "gold/errors", [error], day="2026-03-01")
    alert = {
        "rule": HOSTILE,
        "queue": HOSTILE,
        "subject": HOSTILE,
        "raised_at": NOW,
        "value": 0.5,
        "threshold": 0.1,
        "message": HOSTILE,
    }
    put(lake, "gold/alerts", [alert])
    gap = {"queue": HOSTILE, "ts": NOW, "from_id": "1-0", "until_id": "2-0", "lost": None, "reason": HOSTILE}
    put(lake, "silver/gaps", [gap])
    text = write_report(lake, tmp_path / "report.html", now=NOW).read_text()
    assert "<script" not in text
    assert (
        text.count("<svg") == 2 * 4 + 2 + 1
    )  # plots of each queue, a small one of each, the strip of the alert
    assert "01 Mar 2026 12:00 – 12:05 UTC" in text
    assert _balanced(text)


def test_the_page_shows_how_many_events_were_lost_and_hatches_the_time_of_which_little_is_known(
    tmp_path: Path,
) -> None:
    lake = Lake(tmp_path / "lake")
    rows = [minute("emails", NOW + timedelta(minutes=n)) for n in (0, 1, 10)]
    put(lake, "gold/queue_minute", [*rows, minute("calm", NOW)], day="2026-03-01")
    told = [render(lake, NOW)]
    first, second = NOW + timedelta(minutes=3, seconds=30), NOW + timedelta(minutes=9, seconds=30)
    gap = {"queue": "emails", "until_id": "2-0", "lost": 5788, "reason": "trimmed"}
    put(lake, "silver/gaps", [{**gap, "ts": second, "from_id": f"{int(first.timestamp() * 1000)}-0"}])
    told.append(render(lake, NOW, since=NOW))
    put(lake, "silver/gaps", [{**gap, "ts": NOW, "from_id": "0-0", "lost": None, "reason": "recreated"}])
    told.append(render(lake, NOW))
    tiles = [re.findall(r"events lost</span><b>([^<]*)</b>", text) for text in told]
    assert tiles == [["0"], ["5,788"], ["5,788+"]]
    # The plots of the queue and its line in the overview; a gap before all that is known makes a second stretch.
    assert [text.count('class="unknown"') for text in told] == [0, 5, 10]
    assert all(_balanced(text) for text in told)


def test_hatched_stretches_have_the_width_of_their_time() -> None:
    times = [NOW + timedelta(minutes=n) for n in range(10)]
    series = [Series(name="x", kind="completed", values=[None] * 10)]
    for draw in (
        stacked_bars(times, series, 60, (), times[2:5]),
        bands(times, series * 3, "ms", 60, (), times[2:5]),
    ):
        (box,) = fromstring(draw).findall("g[@class='unknown']/rect")
        assert float(box.attrib["width"]) == pytest.approx(0.3 * 384, abs=0.1)
    small = fromstring(sparkline(series, unknown=[2 <= n < 5 for n in range(10)]))
    assert [box.attrib["width"] for box in small.findall("g/rect")] == ["54.0"]


def _balanced(text: str) -> bool:
    class Reader(HTMLParser):
        open_tags: ClassVar[list[str]] = []

        def handle_starttag(self, tag: Any, attributes: Any) -> None:
            if tag not in ("meta", "line", "polyline", "polygon", "br"):
                self.open_tags.append(tag)

        def handle_endtag(self, tag: Any) -> None:
            assert self.open_tags.pop() == tag

        def handle_startendtag(self, tag: Any, attributes: Any) -> None:
            pass

    reader = Reader()
    reader.feed(text)
    return not reader.open_tags


def test_a_page_about_no_tables_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TableMissing, match="toril pipeline run` first"):
        render(Lake(tmp_path), NOW)


@pytest.mark.parametrize("values", [[], [0.0], [None], [1e12, 1e-9], [float(n) for n in range(50)]])
def test_plots_take_any_values(values: Any) -> None:
    times = [NOW + timedelta(minutes=n) for n in range(len(values))]
    series = [Series(name="x", kind="completed", values=values)]
    found = [
        stacked_bars(times, series, 60, times),
        bands(times, series * 3, "ms", 60, times),
        sparkline(series),
        timeline(NOW, NOW, times, 60),
    ]
    for text in found:
        assert fromstring(text).tag == "svg"


def test_a_lake_may_be_read_by_many_threads(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    put(lake, "gold/queue_minute", [minute("a", NOW)], day="2026-03-01")
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(lake.query("select * from gold.queue_minute").num_rows))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8


def test_marks_that_others_commit_are_seen(tmp_path: Path) -> None:
    mine, yours = Lake(tmp_path), Lake(tmp_path)
    for version in range(3):
        yours.ensure("bronze/rejects").commit([], application="a", version=version, marks={f"b{version}": 7})
        log = mine.ensure("bronze/rejects")
        assert (log.committed("a"), log.committed(f"b{version}"), log.committed("c")) == (version, 7, -1)
    for version in range(3, 60):
        yours.ensure("bronze/rejects").commit([], application="a", version=version)
    assert mine.ensure("bronze/rejects").committed("a") == 59


def test_the_page_about_the_last_hours_leaves_out_what_was_before(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    put(lake, "gold/queue_minute", [minute("old", NOW - timedelta(hours=3)), minute("new", NOW)])
    whole, part = render(lake, NOW), render(lake, NOW, since=NOW - timedelta(hours=1))
    assert (">old" in whole, ">new" in whole) == (True, True)
    assert (">old" in part, ">new" in part) == (False, True)


@pytest.mark.parametrize("minutes", [1, 6, 59, 60 * 7, 60 * 30, 60 * 24 * 17, 60 * 24 * 400])
def test_moments_on_the_axis_are_round_few_and_equally_far_apart(minutes: int) -> None:
    seconds = 60 if minutes < 360 else 3600
    times = [NOW + timedelta(seconds=n) for n in range(0, minutes * 60, seconds)]
    moments = [moment for moment, _ in _time_ticks(times, seconds)]
    assert 1 <= len(moments) <= 7
    assert times[0] <= moments[0] and moments[-1] <= times[-1] + timedelta(seconds=seconds)
    assert len({b - a for a, b in itertools.pairwise(moments)}) <= 1


def test_queues_are_in_the_order_of_their_severity() -> None:
    def rows(attempts: int, failed: int) -> list[dict[str, int]]:
        return [{"attempts": attempts, "failed": failed}]

    queues = {
        "calm": rows(50, 0),
        "busy": rows(900, 0),
        "failing": rows(10, 5),
        "alarmed": rows(10, 1),
        "idle": rows(0, 0),
    }
    assert by_severity(queues, ["alarmed"]) == ["alarmed", "failing", "busy", "calm", "idle"]


def test_the_strip_of_an_alert_has_a_time_axis() -> None:
    start = datetime(2026, 1, 1, 10, tzinfo=UTC)
    period = (start, start + timedelta(hours=4))
    alert = {
        "rule": "failure_rate", "queue": "emails", "subject": "", "worst": 0.5, "threshold": 0.1, "times": 1,
        "last": start, "message": "too many", "moments": [start + timedelta(hours=1)],
    }  # fmt: skip
    page = alert_list([alert], period, 60)
    for moment in ("01 Jan 10:00", "01 Jan 12:00", "01 Jan 14:00"):
        assert f"<span>{moment}</span>" in page


def test_the_backlog_is_what_is_ready_and_not_taken_at_the_end_of_each_minute(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    put(
        lake,
        "gold/queue_minute",
        [minute("emails", NOW + timedelta(minutes=n)) for n in (0, 4)],
        day="2026-03-01",
    )
    names = TABLES["silver/attempts"].schema.names
    attempts = [
        # Three are ready in minute 0: one is taken at once, two in minute 3.
        {**dict.fromkeys(names), "queue": "emails", "job_id": f"j{n}", "attempt": 1, "outcome": "completed"}
        | {
            "ready_at": NOW,
            "active_at": NOW + timedelta(minutes=taken),
            "ended_at": NOW + timedelta(minutes=4),
        }
        | {"day": NOW.date()}
        for n, taken in enumerate((0, 3, 3))
    ]
    put(lake, "silver/attempts", attempts, day="2026-03-01")
    waiting = {**dict.fromkeys(TABLES["silver/jobs"].schema.names), "queue": "emails", "job_id": "w"}
    waiting |= {"state": "waiting", "phase": "open", "added_at": NOW + timedelta(minutes=1)}
    put(lake, "silver/jobs", [waiting], phase="open")
    text = render(lake, NOW)
    tips = re.findall(r"<title>([\d:]+) — backlog: (\d+)</title>", text)
    assert tips == [("12:00", "2"), ("12:01", "3"), ("12:02", "3"), ("12:03", "1"), ("12:04", "1")]


def test_threads_that_ensure_a_table_at_once_create_it_once(tmp_path: Path) -> None:
    lake, barrier = Lake(tmp_path), threading.Barrier(4)

    def ensure() -> None:
        barrier.wait()
        for name in TABLES:
            lake.ensure(name)

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert {name: lake.table(name).version for name in TABLES} == dict.fromkeys(TABLES, 0)
