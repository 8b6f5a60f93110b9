"""What the dashboard shows from the lake: figures over time, and jobs that Redis no longer has."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.dashboard.conftest import MakePerson
from tests.waiting import until
from toril import Queue
from toril.lake import Lake
from toril.spark.pipeline.files.parquet_files import write_file

NOW = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def put(lake: Lake, name: str, row: dict[str, Any], **partition: Any) -> None:
    log = lake.ensure(name)
    table = pa.Table.from_pylist([row], schema=log.spec.schema)
    log.commit([write_file(lake, name, table, partition)], application="test", version=log.version + 1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with an hour of one queue, an error, an alert, a gap and a job."""
    lake = Lake(tmp_path / "lake")
    day = NOW.date()
    ended = NOW - timedelta(minutes=30)
    hour = {"queue": "emails", "hour": NOW - timedelta(hours=1), "completed": 41, "failed": 1, "attempts": 42}
    put(lake, "gold/queue_hour", {**hour, "day": day}, day=str(day))
    attempt = {
        "queue": "emails",
        "job_id": "gone",
        "name": "send",
        "attempt": 1,
        "ended_at": ended,
        "day": day,
    }
    attempt |= {"outcome": "failed", "wait_ms": 250, "run_ms": 1500, "worker": "w-1", "error": "mailbox full"}
    put(lake, "silver/attempts", attempt, day=str(day))
    job = {"queue": "emails", "job_id": "gone", "name": "send", "state": "failed", "attempt": 1, "stalls": 0}
    job |= {
        "added_at": ended,
        "finished_at": ended,
        "updated_at": ended,
        "updated_seq": 1,
        "error": "mailbox full",
    }
    put(lake, "silver/jobs", {**job, "phase": "done"}, phase="done")
    error = {
        "queue": "emails",
        "fingerprint": "f",
        "pattern": "mailbox <n>",
        "name": "send",
        "count": 7,
        "jobs": 7,
    }
    error |= {"first_at": ended, "last_at": ended, "sample_job_id": "gone", "day": day}
    put(lake, "gold/errors", error, day=str(day))
    alert = {
        "rule": "failure_rate",
        "queue": "emails",
        "subject": "",
        "raised_at": ended,
        "message": "too many fail",
    }
    put(lake, "gold/alerts", alert)
    gap = {
        "queue": "emails",
        "ts": ended,
        "from_id": f"{int(ended.timestamp() * 1000) - 1}-0",
        "until_id": "2-0",
    }
    put(lake, "silver/gaps", gap)
    return lake


async def test_history_shows_two_ranges_errors_alerts_and_gaps(person_with: MakePerson, lake: Lake) -> None:
    person = await person_with(lake=lake.url)
    page = await person.text("/history?a=24h&b=-24h&queue=emails")
    assert page.count("<figure>") == 6
    for words in ("mailbox &lt;n&gt;", "too many fail", "events missing", "1.5 s"):
        assert words in page, words
    # Two ranges can be compared: each plot has the scale of its twin.
    scales = [re.findall(r'text-anchor="end">([^<]+)<', one) for one in page.split("<figure>")[1:]]
    assert all(scales) and scales[:3] == scales[3:]
    assert "the 24h before" in page and "slowest queue" not in page
    assert (await person.get("/history?a=fortnight")).status_code == 400


async def test_a_removed_job_is_shown_from_the_lake(
    person_with: MakePerson, lake: Lake, valkey_url: str, prefix: str
) -> None:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.open()
    person = await person_with(lake=lake.url)
    page = await person.text("/queues/emails/job?id=gone")
    for words in ("Redis no longer has this job", "mailbox full", "w-1", "1.5 s"):
        assert words in page, words
    assert (await person.get("/queues/emails/job?id=never")).status_code == 404


async def test_without_a_lake_history_says_how_to_get_one(person_with: MakePerson, tmp_path: Path) -> None:
    assert "toril pipeline up" in await (await person_with()).text("/history")
    empty = await person_with(lake=str(tmp_path / "nothing"))
    assert "The lake is empty" in await empty.text("/history")


@pytest.mark.parametrize(("minutes_ago", "origin"), [(2, "the lake"), (30, "samples")])
async def test_the_overview_takes_rates_from_a_lake_that_is_current(
    person_with: MakePerson, lake: Lake, valkey_url: str, prefix: str, minutes_ago: int, origin: str
) -> None:
    # The time of this test: whole runs take longer than a lake is current.
    at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
    row = {
        "queue": "emails",
        "minute": at,
        "completed": 4711,
        "failed": 3,
        "attempts": 4714,
        "day": at.date(),
    }
    put(lake, "gold/queue_minute", row, day=str(at.date()))
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {})
    person = await person_with(lake=lake.url)

    await person.text("/")
    history = person.app.state.dashboard.history
    assert history._reading is not None
    await history._reading  # what the lake knows
    assert history.problem == ""

    async def page_with_rate() -> str:
        person.app.state.dashboard.sources.outdate()
        page: str = await person.text("/")
        return page if 'title="from ' in page else ""

    page = await until(page_with_rate, "two readings make a rate")
    assert f'title="from {origin}"' in page
    assert ("4,711" in page) == (origin == "the lake")
