"""Replay: prepares a lake for silver and gold to be computed anew from bronze.

Guarantee: no row of bronze changes, and alerts about workers are kept.
"""

from __future__ import annotations

import logging

from toril.errors import LakeError, RedisError
from toril.lake import Lake
from toril.spark.pipeline.bronze.snapshot_writer import JOBS
from toril.spark.pipeline.bronze.steps import snapshot_taker
from toril.spark.pipeline.bronze.stream_positions import TABLE
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.files.lineage import HASHES
from toril.spark.pipeline.files.retention import first_day_kept
from toril.spark.pipeline.gold.kept_alerts import alerts_of_workers, put_back
from toril.spark.pipeline.silver.rebuild import clear, lower_marks
from toril.spark.sources.server_choice import check_reachable

_log = logging.getLogger("toril.pipeline")


def prepare(context: PipelineContext, *, drop_older: bool = False) -> None:
    """Reads the hashes that are missing in bronze, then empties silver and gold."""
    if not drop_older:
        _check_that_nothing_is_older(context.lake)
    lower_marks(context.lake)
    _read_missing_hashes(context)
    alerts = alerts_of_workers(context.lake)
    clear(context.lake)
    put_back(context.lake, alerts)


def _check_that_nothing_is_older(lake: Lake) -> None:
    first = first_day_kept(lake.ensure(TABLE))
    if first is None:
        return
    sql = "select count(*) as n from silver.attempts where day < $first"
    older = lake.query(sql, {"first": first})["n"][0].as_py()
    if older:
        raise LakeError(
            f"silver has {older} attempts from before {first}, where bronze begins: a replay would remove them; "
            "--drop-older (drop_older=True) accepts that"
        )


def _read_missing_hashes(context: PipelineContext) -> None:
    behind = context.lake.ensure(TABLE).version - context.lake.ensure(JOBS).committed(HASHES)
    if not behind:
        return
    try:
        check_reachable(context.redis)
        snapshot_taker(context).run()
    except RedisError as error:
        _log.warning("hashes of %d commits are not read, their attempts stay without: %s", behind, error)
