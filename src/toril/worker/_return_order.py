"""The order in which a worker that stops returns its jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from toril.backends.base import D
from toril.protocol.outcome import Requeued
from toril.worker._attempt import FinishedAttempt


class ReturnOrder(Generic[D]):
    """Requeued jobs that wait for each other, so that they are returned in the order in which they were fetched."""

    def __init__(self, running: Iterable[int]) -> None:
        self._ranks = {key: rank for rank, key in enumerate(running)}  # by the identity of the delivery
        self.waiting: list[FinishedAttempt[D]] = []

    def add(self, finished: FinishedAttempt[D]) -> None:
        self.waiting.append(finished)
        self._ranks.setdefault(id(finished.delivery), len(self._ranks))

    def take(self) -> list[FinishedAttempt[D]]:
        """The jobs that wait, each with its rank; the last one first, because each is put before those before it."""
        ranked = [(self._ranks[id(one.delivery)], one) for one in self.waiting]
        self.waiting = []
        return [
            FinishedAttempt(one.delivery, Requeued(_reason(one), rank), one.attempt)
            for rank, one in sorted(ranked, key=lambda pair: -pair[0])
        ]


def _reason(finished: FinishedAttempt[D]) -> str:
    return finished.outcome.reason if isinstance(finished.outcome, Requeued) else ""
