"""Jobs per minute of the queues of one server, and where the figures come from.

Guarantee: BullMQ's own minutes are taken if the workers collect them, else the lake's, else the growth between two
readings of the counts. A rate says which.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from toril.commands import read
from toril.commands.command import Command
from toril.commands.overview import EnvelopeOverview
from toril.commands.read import Metrics
from toril.observe.overview import QueueFigures, ServerOverview
from toril.protocol.keys import QueueKeys
from toril.transport.discovery import FoundQueue

MINUTES: Final = 60
# BullMQ writes a minute when it is over.
METRICS_EVERY: Final = 10.0
# The minutes of all queues that are read at once: about 60 KB. Of more than a hundred queues, fewer minutes are read.
MOST_MINUTES: Final = 100 * MINUTES
# A lake whose newest minute is older has no rates of now.
LAKE_LATE: Final = timedelta(minutes=5)
# Samples of the counts: two minutes.
SAMPLES: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Jobs per minute that completed and failed, and where the figures come from."""

    completed: list[float]  # for each past minute or sample, oldest first
    failed: list[float]
    origin: str  # "BullMQ metrics", "the lake" or "samples"
    covers: str  # the time of the figures
    now: float  # completed: the last whole minute, or the mean of the samples
    failed_now: float


def of_lake(rows: Sequence[Mapping[str, Any]], now: datetime) -> dict[str, Rate]:
    """Returns the rates of rows of `gold.queue_minute` of the last hour, by queue; none if they are not current."""
    by_queue: dict[str, dict[datetime, tuple[float, float]]] = {}
    for row in rows:
        at = row["minute"].astimezone(UTC)
        by_queue.setdefault(row["queue"], {})[at] = (float(row["completed"] or 0), float(row["failed"] or 0))
    newest = max((at for minutes in by_queue.values() for at in minutes), default=None)
    if newest is None or now - newest > LAKE_LATE:
        return {}
    times = [newest - timedelta(minutes=ago) for ago in reversed(range(MINUTES))]
    rates = {}
    for queue, minutes in by_queue.items():
        placed = [minutes.get(at, (0.0, 0.0)) for at in times]
        done, lost = [one for one, _ in placed], [one for _, one in placed]
        rates[queue] = Rate(
            completed=done,
            failed=lost,
            origin="the lake",
            covers=f"an hour until {newest:%H:%M} UTC",
            now=done[-1],
            failed_now=lost[-1],
        )
    return rates


class Rates:
    """The rates of the queues of one server."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, tuple[int, int]]]] = deque(maxlen=SAMPLES)
        self._asked: list[FoundQueue] = []
        self._asked_at = -METRICS_EVERY
        self._metrics: dict[FoundQueue, tuple[Metrics, Metrics]] = {}
        self.lake: Mapping[str, Rate] = {}  # by the queue's label

    def commands(self, queues: Sequence[FoundQueue]) -> list[Command[Any]]:
        """Returns the commands that read BullMQ's minutes of these queues; none if they are known."""
        now = time.monotonic()
        if now - self._asked_at < METRICS_EVERY and len(self._asked) == len(queues):
            return []
        self._asked, self._asked_at = list(queues), now
        minutes = max(5, min(MINUTES, MOST_MINUTES // max(1, len(queues))))
        return [
            read.get_metrics(one.keys, kind, end=minutes - 1)
            for one in self._bullmq(queues)
            for kind in ("completed", "failed")
        ]

    @staticmethod
    def _bullmq(queues: Sequence[FoundQueue]) -> list[Any]:
        return [one for one in queues if isinstance(one.keys, QueueKeys) and not one.undecodable]

    def learn(self, replies: Sequence[object]) -> None:
        """Takes the values of the commands."""
        if not replies:
            return
        pairs = zip(replies[::2], replies[1::2], strict=True)
        self._metrics = {
            queue: (completed, failed)
            for queue, (completed, failed) in zip(self._bullmq(self._asked), pairs, strict=True)
            if isinstance(completed, Metrics)
            and isinstance(failed, Metrics)
            and (completed.minutes or failed.minutes)
        }

    def of(self, overview: ServerOverview) -> dict[str, Rate]:
        """Returns the rates of the queues of an overview, by label."""
        rates = self._sampled(overview)
        rates |= {one.label: self.lake[one.label] for one in overview.queues if one.label in self.lake}
        for one in overview.queues:
            known = self._metrics.get(one.queue)
            if known is not None:
                rates[one.label] = _of_metrics(*known, overview.now_ms)
        return rates

    def _sampled(self, overview: ServerOverview) -> dict[str, Rate]:
        """Returns rates by two samples: totals of list and stream queues, counts of finished jobs of BullMQ queues."""
        now = time.monotonic()
        counts = {one.label: _ended(one) for one in overview.queues}
        self._samples.append((now, counts))
        minutes = (now - self._samples[0][0]) / 60
        if minutes <= 0:
            return {}
        first = self._samples[0][1]
        better = {one.label for one in overview.queues if one.queue in self._metrics} | set(self.lake)
        return {
            label: self._rate(label, minutes) for label in counts if label in first and label not in better
        }

    def _rate(self, label: str, minutes: float) -> Rate:
        """Returns the growth between samples. A count that falls, because old jobs are removed, tells nothing."""
        known = [(at, counts[label]) for at, counts in self._samples if label in counts]
        steps = [
            (max(0, new[0] - old[0]), max(0, new[1] - old[1]), (at - before) / 60)
            for (before, old), (at, new) in itertools.pairwise(known)
        ]
        return Rate(
            completed=[done / span for done, _, span in steps],
            failed=[failed / span for _, failed, span in steps],
            origin="samples",
            covers=f"the last {minutes * 60:.0f} seconds",
            now=sum(done for done, _, _ in steps) / minutes,
            failed_now=sum(failed for _, failed, _ in steps) / minutes,
        )


def _ended(figures: QueueFigures) -> tuple[int, int]:
    seen = figures.overview
    if isinstance(seen, EnvelopeOverview):
        return seen.totals.get("completed", 0), seen.totals.get("dead", 0)
    return seen.counts.completed, seen.counts.failed


def _of_metrics(completed: Metrics, failed: Metrics, now_ms: int) -> Rate:
    done, lost = _minutes(completed, now_ms), _minutes(failed, now_ms)
    return Rate(
        completed=done,
        failed=lost,
        origin="BullMQ metrics",
        covers="an hour",
        now=done[-1],
        failed_now=lost[-1],
    )


def _minutes(metrics: Metrics, now_ms: int) -> list[float]:
    """Returns an hour of minutes, oldest first. BullMQ writes a minute when a later job ends: those since are 0."""
    since = max(0, now_ms // 60_000 - metrics.previous_at_ms // 60_000) if metrics.previous_at_ms else 0
    past = [0.0] * min(since, MINUTES) + [float(one) for one in metrics.minutes]
    return ([0.0] * MINUTES + past[:MINUTES][::-1])[-MINUTES:]
