"""The steps that write silver: refinement, rebuild and reconciliation."""

from __future__ import annotations

from toril.spark.pipeline.bronze.reconcile import Reconciler
from toril.spark.pipeline.bronze.steps import catch_up, snapshot_taker
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.silver.rebuild import SilverRebuilder, clear, is_cut_off
from toril.spark.pipeline.silver.refiner import SilverRefiner


def refine(context: PipelineContext) -> int:
    """Commits hashes to bronze, then refines bronze to silver. Returns the number of events."""
    if is_cut_off(context.lake):
        clear(context.lake)
        return rebuild(context)
    snapshot_taker(context).run()
    return _refiner(context).run()


def rebuild(context: PipelineContext, filled: str | None = None) -> int:
    """Computes silver from all of bronze; its tables must be empty. Returns the number of events."""
    return SilverRebuilder(_refiner(context, filled)).run()


def _refiner(context: PipelineContext, filled: str | None = None) -> SilverRefiner:
    return SilverRefiner(context.engine, context.lake, filled or context.options.filled)


def reconcile(context: PipelineContext) -> int:
    """Completes silver from job hashes where events are missing. Returns the number of jobs that were read."""
    reconciler = Reconciler(
        context.engine,
        context.lake,
        context.redis,
        context.options.prefix,
        snapshot_taker(context),
        lambda: catch_up(context),
    )
    found = reconciler.run()
    if found:
        refine(context)
    return found
