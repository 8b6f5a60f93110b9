"""The steps that write gold."""

from __future__ import annotations

from collections.abc import Sequence

from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.gold.refiner import FIGURES, GoldRefiner
from toril.spark.transforms.rules import DEFAULT_RULES


def refresh(context: PipelineContext, names: Sequence[str] = tuple(FIGURES)) -> int:
    """Computes the tables named from silver, then workers and alerts."""
    rules = (*DEFAULT_RULES, *context.options.rules)
    GoldRefiner(context.engine, context.lake, rules).run(names)
    return 0


def refresh_minutes(context: PipelineContext) -> int:
    """Computes the figures per minute, then workers and alerts."""
    return refresh(context, ("queue_minute",))
