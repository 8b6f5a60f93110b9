"""How long rows stay: `--keep bronze=30d,silver=1y`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.servers import Server
from tests.spark.factory import Factory
from tests.spark.makers import Factories
from toril.errors import InvalidOption, LakeError
from toril.lake import TABLES, Lake
from toril.spark.pipeline import Pipeline, PipelineOptions
from toril.spark.pipeline.files.retention import Retention, parse_keep


def test_a_table_is_named_before_its_layer() -> None:
    days = parse_keep("silver = 1y, bronze=30d,bronze.events=2w,gold/workers=1d")
    assert days["bronze/events"] == 14
    assert days["bronze/jobs"] == 30
    assert days["silver/attempts"] == 365
    assert "gold/workers" not in days, "it has one row for each worker"
    assert parse_keep("") == {}


@pytest.mark.parametrize(
    "text", ["bronze", "bronze=30", "bronze=0d", "bronze=1h", "lead=3d", "silver/nope=3d"]
)
def test_a_span_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="keep"):
        PipelineOptions(keep=text)


class Kept:
    """A lake whose rows grow old by a clock that is put forward."""

    def __init__(self, url: str, lake: Path, queue: Factory) -> None:
        self.url, self.lake, self.queue = url, lake, queue

    def pipeline(self) -> Pipeline:
        prefix = self.queue.prefix
        return Pipeline(PipelineOptions(redis=self.url, prefix=prefix, lake=self.lake, engine="driver"))

    def cut(self, keep: str, days: int) -> dict[str, int]:
        now = datetime.now(UTC) + timedelta(days=days)
        return Retention(Lake(self.lake), parse_keep(keep)).run(now)

    def counts(self) -> dict[str, int]:
        lake = Lake(self.lake)
        return {name: lake.read(name).num_rows for name in lake.tables()}


@pytest.fixture
def kept(factory: Factories, valkey: Server, tmp_path: Path) -> Kept:
    queue = factory("kept")
    queue.add(20)
    queue.work(limit=15, fail=0.3)
    made = Kept(valkey.url, tmp_path / "lake", queue)
    made.pipeline().run_once()
    return made


def test_rows_go_when_their_day_is_too_old_and_later_runs_go_on(kept: Kept) -> None:
    before = kept.counts()
    assert sum(kept.cut("bronze=30d,silver=1y", days=29).values()) == 0
    removed = kept.cut("bronze=30d,silver=1y", days=40)
    assert removed["bronze/events"] == before["bronze/events"]
    assert removed["bronze/jobs"] == before["bronze/jobs"]
    after = kept.counts()
    assert {
        name: after[name] for name in TABLES if name.startswith(("silver", "gold")) and name in after
    } == {name: before[name] for name in before if name.startswith(("silver", "gold"))}
    kept.queue.work()
    kept.pipeline().run_once()
    assert kept.counts()["silver/attempts"] == 20
    assert [one.check for one in kept.pipeline().examine()] == []


def test_open_jobs_stay_however_old(kept: Kept) -> None:
    kept.cut("silver=30d", days=40)
    rows = Lake(kept.lake).query("select state, count(*) as n from silver.jobs group by 1").to_pylist()
    assert rows == [{"state": "waiting", "n": 5}]


def test_events_that_silver_does_not_have_yet_stay(kept: Kept) -> None:
    kept.queue.add(3)
    kept.pipeline().ingest()
    assert kept.cut("bronze=30d", days=40)["bronze/events"] == 0


def test_a_replay_that_would_remove_attempts_is_refused_unless_it_is_accepted(kept: Kept) -> None:
    kept.cut("bronze=30d", days=40)
    before = kept.counts()
    with pytest.raises(LakeError, match="--drop-older"):
        kept.pipeline().replay()
    assert kept.counts() == before
    kept.pipeline().replay(drop_older=True)
    assert kept.counts()["silver/attempts"] == 0
