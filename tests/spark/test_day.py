"""End to end: real workers of both languages, and the tables against what their handlers wrote down."""

from __future__ import annotations

import asyncio

from tests.spark.day import Day, check, check_replay
from tests.spark.makers import Pipelines


async def test_every_attempt_of_node_and_toril_workers_is_in_the_tables(
    valkey_url: str, prefix: str, make_pipeline: Pipelines
) -> None:
    day = Day(valkey_url, prefix, 1_000)
    pipeline = make_pipeline()
    await day.live(lambda: asyncio.to_thread(pipeline.run_once))
    await asyncio.to_thread(pipeline.run_once)
    await asyncio.to_thread(check, day, pipeline)
    assert 0 < day.by_node < day.outcomes.total()
    assert min(day.outcomes[one] for one in ("completed", "failed", "retried", "stalled")) > 0
    await asyncio.to_thread(check_replay, day, pipeline)
