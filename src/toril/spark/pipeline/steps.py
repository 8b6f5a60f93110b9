"""The steps of a pipeline, in order: their names, their functions, and when `run` and `up` run them.

Guarantee: a step has the same name in `run`, in `up`, in logs and in summaries. The module of a step is imported when
the step first runs, so that importing this module does not import pyspark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Final, cast

from toril.errors import PipelineFailed
from toril.spark.pipeline.context import PipelineContext
from toril.spark.pipeline.options import PipelineOptions, Summary
from toril.spark.pipeline.supervisor.spark_errors import cause_of, is_spark_error

StepFunction = Callable[[PipelineContext], int]
NamedStep = tuple[str, Callable[[], int]]
OnStep = Callable[
    [str, int, int], object
]  # the name of the step that begins, how many are done, and of how many
_TRIES: Final = 3  # of a step whose commit conflicted with one of another pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One step: its name, where its function is, and when it runs."""

    name: str
    target: str  # "module:function", relative to this package
    once: bool = True  # whether `run` includes it
    every: Callable[[PipelineOptions], float] | None = (
        None  # seconds between two runs of `up`; None: not at intervals
    )

    def run(self, context: PipelineContext) -> int:
        return cast("StepFunction", resolve(self.target))(context)


STEPS: Final = (
    StepSpec(name="ingest", target="bronze.steps:ingest"),  # `up` ingests on a thread
    StepSpec(name="silver", target="silver.steps:refine", every=lambda options: options.refine_every),
    StepSpec(
        name="minutes",
        target="gold.steps:refresh_minutes",
        once=False,  # included in gold
        every=lambda options: options.minutes_every,
    ),
    StepSpec(
        name="reconcile", target="silver.steps:reconcile", every=lambda options: options.reconcile_every
    ),
    StepSpec(
        name="snapshots", target="bronze.steps:take_snapshots", every=lambda options: options.snapshot_every
    ),
    StepSpec(
        name="reports", target="bronze.steps:collect_reports", every=lambda options: options.report_every
    ),
    StepSpec(name="gold", target="gold.steps:refresh", every=lambda options: options.figures_every),
    StepSpec(
        name="maintain",
        target="files.maintain:maintain_tables",
        once=False,
        every=lambda options: options.maintain_every,
    ),
)


def resolve(target: str) -> object:
    """Imports the function that "module:function" names, relative to this package."""
    module, _, name = target.partition(":")
    return vars(import_module(f"{__package__}.{module}"))[name]


def step(name: str) -> StepSpec:
    return next(one for one in STEPS if one.name == name)


def steps_once(context: PipelineContext) -> list[NamedStep]:
    """The steps of `run`, in order."""
    return [(one.name, partial(one.run, context)) for one in STEPS if one.once]


def run_steps(
    context: PipelineContext, steps: Sequence[NamedStep], on_step: OnStep = lambda *_: None
) -> Summary:
    """Runs the steps in order and measures each; `on_step` is called before each."""
    began = time.monotonic()
    seconds: dict[str, float] = {}
    events = 0
    for done_before, (name, function) in enumerate(steps):
        on_step(name, done_before, len(steps))
        started = time.monotonic()
        done = _run_explained(context, name, function)
        events += done if name == "silver" else 0
        seconds[name] = round(time.monotonic() - started, 3)
    return Summary(events=events, seconds=time.monotonic() - began, steps=seconds)


def _run_explained(context: PipelineContext, name: str, function: Callable[[], int]) -> int:
    """Runs a step; an error of Spark becomes one line with its cause instead of pages of Java."""
    try:
        return _retry_on_conflict(function)
    except Exception as error:
        if reason := context.sessions.drop_if_dead(wait_seconds=1.0):
            raise PipelineFailed(f"{name}: {reason}; the tables are whole, run it again") from error
        if is_spark_error(error):
            raise PipelineFailed(f"{name}: {cause_of(error)}") from error
        raise


def _retry_on_conflict(function: Callable[[], int]) -> int:
    """Runs a step again, from the present tables, if another pipeline on the same lake committed first."""
    for _ in range(_TRIES - 1):
        try:
            return function()
        except Exception as error:
            # Spark passes an error of a stream on as text.
            if "CommitFailedError" not in f"{type(error).__name__} {error.__cause__}":
                raise
    return function()
