"""The memory of this process."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes() -> int:
    """Resident size of this process; 0 where the system does not report it."""
    try:
        statm = Path("/proc/self/statm").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")
