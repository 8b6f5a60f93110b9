"""Combines several runs: medians, spreads and ratios.

Guarantee: pure functions. A ratio is computed from medians of the same interleaved run, never from different runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Run = Mapping[str, float]  # the metrics of one run, by name

# Suffixes of metrics for which less is better; for all others, more is better.
LESS_IS_BETTER = ("_us", "_ms", "_mb", "_bytes", "p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric over the runs of one contender."""

    median: float
    low: float
    high: float
    runs: int

    @property
    def spread(self) -> float:
        """Half of the range, as a share of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def summarize(runs: Sequence[Run]) -> dict[str, Summary]:
    """Returns a summary per metric, over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: _summary([run[name] for run in runs if name in run]) for name in names}


def _summary(values: Sequence[float]) -> Summary:
    return Summary(statistics.median(values), min(values), max(values), len(values))


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no percentile of an empty list of values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def percentiles(prefix: str, values: Sequence[float]) -> dict[str, float]:
    """Returns p50, p95 and p99 under names that begin with `prefix`; empty if there are no values."""
    if not values:
        return {}
    return {f"{prefix}p{round(share * 100)}": percentile(values, share) for share in (0.50, 0.95, 0.99)}


def less_is_better(metric: str) -> bool:
    return metric.endswith(LESS_IS_BETTER)


def best(metric: str, medians: Mapping[str, float]) -> str | None:
    """Returns the name with the best median of this metric, or None if there are none."""
    if not medians:
        return None
    choose = min if less_is_better(metric) else max
    return choose(medians, key=lambda name: medians[name])


def ratio(ours: float, theirs: float) -> float:
    """Returns ours divided by theirs; infinity if theirs is 0."""
    return ours / theirs if theirs else math.inf
