"""Rules of alerts: questions in SQL over the gold tables, and the thresholds of their answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A question in SQL over `queue_minute`, `queue_hour`, `errors` and `workers`.

    It selects `queue`, `raised_at` and `value`, and may select `subject`; every row above `threshold` is an alert.
    """

    name: str
    sql: str
    threshold: float
    message: str

    def alerts(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows of gold/alerts for rows of the answer."""
        same = {"rule": self.name, "threshold": float(self.threshold), "message": self.message}
        return [{"subject": "", **row, "value": float(row["value"]), **same} for row in rows]


# A minute with three jobs of which one was retried says nothing: rates count from here on.
_ENOUGH: Final = 10

DEFAULT_RULES: Final = (
    Rule(
        name="heartbeat_failures",
        sql="select queue, worker as subject, last_report_at as raised_at, heartbeat_failure_rate as value "
        "from workers",
        threshold=0.05,
        message="heartbeats fail: look at Redis latency and the network",
    ),
    Rule(
        name="stalled_jobs",
        sql=f"select queue, minute as raised_at, stall_rate as value from queue_minute where attempts >= {_ENOUGH}",
        threshold=0.10,
        message="many active jobs stall: look at worker stability and memory",
    ),
    Rule(
        name="retries",
        sql=f"select queue, minute as raised_at, retry_rate as value from queue_minute where attempts >= {_ENOUGH}",
        threshold=0.10,
        message="many jobs are retried: a service they need may be down",
    ),
    Rule(
        name="sweeps_skipped",
        sql="select queue, worker as subject, last_report_at as raised_at, sweep_skip_rate as value from workers",
        threshold=0.10,
        message="the stalled sweep is skipped: the active list is too large, split the queue",
    ),
)
