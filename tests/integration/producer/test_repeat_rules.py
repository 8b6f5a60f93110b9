"""How patterns are read: by the parser of BullMQ 5 or 6, or by a function of the application."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest

from toril import InvalidOption, Job, Queue, Worker, WorkerOptions, sync
from toril.protocol.json_types import JsonFields
from toril.protocol.record import JobRecord


def every_quarter_second(moment: datetime, repeat: JsonFields, name: str) -> datetime | None:
    assert (repeat["pattern"], name) == ("quarters", "tick")
    return moment + timedelta(seconds=0.25)


async def test_a_repeat_strategy_computes_the_first_run_and_those_that_follow(
    valkey_url: str, prefix: str
) -> None:
    ran, enough = list[str](), asyncio.Event()

    async def handle(job: Job[Any]) -> None:
        ran.append(job.id)
        if len(ran) == 3:
            enough.set()

    queue = Queue("reports", redis=valkey_url, prefix=prefix, repeat_strategy=every_quarter_second)
    worker = Worker("reports", handle, redis=valkey_url, prefix=prefix, repeat_strategy=every_quarter_second)
    async with asyncio.timeout(20), queue, worker:
        await queue.schedulers.upsert("ticks", cron="quarters", name="tick", tz="UTC")
        await enough.wait()
        await queue.schedulers.remove("ticks")
    times = [int(job_id.rpartition(":")[2]) for job_id in ran]
    assert all(later - earlier >= 250 for earlier, later in itertools.pairwise(times))


@pytest.mark.parametrize("returned", ["soon", datetime(2025, 1, 1)])  # noqa: DTZ001  # without a zone: refused
async def test_what_a_repeat_strategy_returns_is_checked(valkey_url: str, prefix: str, returned: Any) -> None:
    queue = Queue("reports", redis=valkey_url, prefix=prefix, repeat_strategy=lambda *_: returned)
    async with queue:
        with pytest.raises(InvalidOption, match="repeat_strategy"):
            await queue.schedulers.upsert("ticks", cron="whatever")
        assert await queue.schedulers.count() == 0


def test_the_cron_generation_decides_when_a_pattern_is_due(valkey_url: str, prefix: str) -> None:
    weekdays: dict[int, set[int]] = {}
    for generation in (5, 6):
        with sync.Queue("q", redis=valkey_url, prefix=prefix, cron_generation=generation) as queue:
            job = queue.schedulers.upsert(f"s{generation}", cron="0 0 31 1 0-7", tz="UTC")
            weekdays[generation] = {(job.timestamp + timedelta(seconds=job.delay)).day}
            queue.schedulers.remove(f"s{generation}")
    assert weekdays[5] == {31}
    assert weekdays[6] != {31}


async def test_a_hashed_pattern_stores_its_seed_for_other_clients(valkey_url: str, prefix: str) -> None:
    async with Queue("reports", redis=valkey_url, prefix=prefix) as queue:
        job = await queue.schedulers.upsert("spread", cron="H H * * *", tz="UTC")
        assert JobRecord(job.id, job.record.fields).opts["repeat"]["hashSeed"] == "spread"


async def test_an_interval_with_an_offset_begins_at_its_place_in_the_interval(
    valkey_url: str, prefix: str
) -> None:
    async with Queue("reports", redis=valkey_url, prefix=prefix) as queue:
        job = await queue.schedulers.upsert("shifted", every=3600, offset=600)
        due = round((job.timestamp + timedelta(seconds=job.delay)).timestamp())
        assert due % 3600 == 600
        found = await queue.schedulers.get("shifted")
        assert found is not None
        assert (found.offset, found.start) == (600, None)
        for wrong in ({"every": 5, "offset": 5}, {"cron": "* * * * *", "offset": 5}):
            with pytest.raises(InvalidOption, match="offset"):
                await queue.schedulers.upsert("wrong", **wrong)


@pytest.mark.parametrize("options", [{"cron_generation": 7}, {"repeat_strategy": "daily"}])
def test_rules_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        WorkerOptions(**options)
