"""Measures the load of the machine: the share of CPU that other processes use while the benchmark is idle.

Guarantee: every figure is stored with the load at its start.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

# Long enough to see continuous load, short compared with any workload.
SAMPLE_SECONDS = 0.5
# From this share on, other processes change the figures.
BUSY = 0.10


def _ticks() -> tuple[int, int]:
    """Returns the idle ticks and all ticks of the CPUs since boot."""
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    ticks = [int(field) for field in first.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)  # idle and iowait


def others_share(seconds: float = SAMPLE_SECONDS) -> float:
    """Returns the share of CPU that other processes use, between 0 and 1. The benchmark must be idle meanwhile."""
    idle, all_ = _ticks()
    time.sleep(seconds)
    idle_later, all_later = _ticks()
    return max(0.0, 1 - (idle_later - idle) / max(1, all_later - all_))


def conditions() -> dict[str, object]:
    """Returns the time and the load under which the next figures are taken."""
    return {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "others": round(others_share(), 2)}
