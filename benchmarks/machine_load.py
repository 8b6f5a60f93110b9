"""How quiet the machine is: the share of its processors that others use while we do nothing.

Guarantee: a figure that was taken beside other work can be told from one that was not.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

# Long enough for what runs all the time, short beside any work.
GLANCE_SECONDS = 0.5
# From here on others take what we would have measured.
BUSY = 0.10


def _ticks() -> tuple[int, int]:
    """Idle and all ticks of the processors so far."""
    first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    words = [int(word) for word in first.split()[1:9]]
    return words[3] + words[4], sum(words)  # idle and iowait


def others_share(seconds: float = GLANCE_SECONDS) -> float:
    """What others use of all processors, between 0 and 1; nothing of ours may run meanwhile."""
    idle, all_ = _ticks()
    time.sleep(seconds)
    idle_later, all_later = _ticks()
    return max(0.0, 1 - (idle_later - idle) / max(1, all_later - all_))


def conditions() -> dict[str, object]:
    """When, and beside how much other work, the next figures are taken."""
    return {"taken": datetime.now(UTC).isoformat(timespec="seconds"), "others": round(others_share(), 2)}
