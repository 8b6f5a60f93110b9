"""Protects a worker from errors of the application's metrics collector.

Guarantee: a collector that raises costs neither a job nor a lock; its error is logged once for each figure. One
that lacks a method, because it is older than the figure, does not get that figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from toril.telemetry.hooks import NO_METRICS, MetricsCollector
from toril.worker._log import WorkerLog


def _ignore(*_: object, **__: object) -> None:
    """Replaces a method that a collector does not have."""


class _SafeMetrics:
    """Calls the collector and catches its errors."""

    def __init__(self, collector: MetricsCollector, log: WorkerLog) -> None:
        self._collector = collector
        self._log = log

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._collector, name, _ignore)
        is_logged = False

        def call(*values: Any, **named: Any) -> None:
            nonlocal is_logged
            try:
                method(*values, **named)
            except Exception as error:  # noqa: BLE001  # a collector may fail in any way; the worker must not
                if not is_logged:
                    is_logged = True
                    self._log.error(error)

        setattr(self, name, call)
        return call


def safe_metrics(collector: MetricsCollector | None, log: WorkerLog) -> MetricsCollector:
    """The collector with its errors caught, or the one that does nothing."""
    return NO_METRICS if collector is None else cast("MetricsCollector", _SafeMetrics(collector, log))
