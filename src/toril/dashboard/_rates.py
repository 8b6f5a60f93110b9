"""Jobs per minute of the queues of one server, and where the figures come from.

Guarantee: BullMQ's own minutes are taken if the workers collect them, else the lake's, else the growth between two
readings of the counts. A rate says which.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import mul
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
# Samples of the counts of a queue: about two minutes.
SAMPLES: Final = 60
# Seconds: two pages of the same moment are one sample, and a count that nobody looked at for a while begins anew.
LEAST_SPAN: Final = 0.5
LONGEST_SPAN: Final = 60.0


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


@dataclass(slots=True)
class _Samples:
    """The growth of the counts of one queue. A count that falls, because old jobs are removed, tells nothing."""

    at: float
    counts: tuple[int, int]  # completed and failed
    completed: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))  # a minute
    failed: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    spans: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))  # minutes

    def add(self, at: float, counts: tuple[int, int]) -> None:
        minutes = (at - self.at) / 60
        if minutes < LEAST_SPAN / 60:
            return
        self.completed.append(max(0, counts[0] - self.counts[0]) / minutes)
        self.failed.append(max(0, counts[1] - self.counts[1]) / minutes)
        self.spans.append(minutes)
        self.at, self.counts = at, counts

    def rate(self) -> Rate | None:
        if not self.spans:
            return None
        minutes = sum(self.spans)
        return Rate(
            completed=list(self.completed),
            failed=list(self.failed),
            origin="samples",
            covers=f"the last {minutes * 60:.0f} seconds",
            now=sum(map(mul, self.completed, self.spans)) / minutes,
            failed_now=sum(map(mul, self.failed, self.spans)) / minutes,
        )


class Rates:
    """The rates of the queues of one server."""

    def __init__(self) -> None:
        self._samples: dict[str, _Samples] = {}
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
        return [one for queue in self._bullmq(queues) for one in minute_commands(queue, minutes)]

    @staticmethod
    def _bullmq(queues: Sequence[FoundQueue]) -> list[FoundQueue]:
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
        known = {one.label for one in overview.queues}
        self._samples = {label: one for label, one in self._samples.items() if label in known}
        rates = {one.label: self._rate(one, self._metrics.get(one.queue)) for one in overview.queues}
        return {label: rate for label, rate in rates.items() if rate is not None}

    def of_queue(self, figures: QueueFigures, replies: Sequence[object]) -> Rate | None:
        """Returns the rate of one queue; `replies` are the values of `minute_commands`, or none."""
        found = [one for one in replies if isinstance(one, Metrics)]
        is_collected = len(found) == 2 and any(one.minutes for one in found)
        return self._rate(figures, (found[0], found[1]) if is_collected else None)

    def _rate(self, figures: QueueFigures, metrics: tuple[Metrics, Metrics] | None) -> Rate | None:
        if metrics is not None:
            return _of_metrics(*metrics, figures.now_ms)
        sampled = self._sampled(figures)
        return self.lake.get(figures.label) or sampled

    def _sampled(self, figures: QueueFigures) -> Rate | None:
        """Returns the growth of totals of list and stream queues, of counts of finished jobs of BullMQ queues."""
        now, counts = time.monotonic(), _ended(figures)
        samples = self._samples.get(figures.label)
        if samples is None or now - samples.at > LONGEST_SPAN:
            self._samples[figures.label] = _Samples(now, counts)
            return None
        samples.add(now, counts)
        return samples.rate()


def minute_commands(queue: FoundQueue, minutes: int = MINUTES) -> list[Command[Any]]:
    """Returns the commands that read BullMQ's minutes of a queue: those of completed jobs, those of failed ones."""
    if not isinstance(queue.keys, QueueKeys):
        return []
    completed = read.get_metrics(queue.keys, "completed", end=minutes - 1)
    return [completed, read.get_metrics(queue.keys, "failed", end=minutes - 1)]


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
