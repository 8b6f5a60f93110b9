"""Between a worker and the collector that an application gave it.

Guarantee: a collector that raises costs neither a job nor a lock; it is said once for each figure. One that was written
before a figure existed, and so lacks its method, does not get that figure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from toril.telemetry.hooks import NO_METRICS, MetricsCollector


def _take_nothing(*_: Any, **__: Any) -> None:
    """In the place of a method that a collector does not have."""


class _SafeMetrics:
    """Hands figures on."""

    def __init__(self, collector: MetricsCollector, on_error: Callable[[BaseException], Any]) -> None:
        self._collector = collector
        self._on_error = on_error

    def __getattr__(self, name: str) -> Callable[..., None]:
        take = getattr(self._collector, name, _take_nothing)
        said = False

        def safe_metrics(*values: Any, **named: Any) -> None:
            nonlocal said
            try:
                take(*values, **named)
            except Exception as error:  # noqa: BLE001  # a collector may fail in any way; the worker must not
                if not said:
                    said = True
                    self._on_error(error)

        setattr(self, name, safe_metrics)
        return safe_metrics


def safe_metrics(
    collector: MetricsCollector | None, on_error: Callable[[BaseException], Any]
) -> MetricsCollector:
    """The collector, or that of nothing, which cannot fail."""
    return NO_METRICS if collector is None else cast("MetricsCollector", _SafeMetrics(collector, on_error))
