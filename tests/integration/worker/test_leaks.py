"""A worker that has done much is as small as one that has done little."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "long_life.py"
ALLOWED_GROWTH = 20 * 1024 * 1024


@pytest.mark.timeout(180)
def test_a_hundred_thousand_jobs_leave_no_memory_thread_or_file_behind(valkey_url: str, prefix: str) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), valkey_url, prefix], capture_output=True, text=True, check=True
    )
    early, late = (json.loads(line) for line in run.stdout.splitlines())
    assert late["done"] == 100_000
    assert late["memory"] - early["memory"] < ALLOWED_GROWTH
    for what in ("threads", "files", "tasks"):
        assert late[what] == early[what], what
