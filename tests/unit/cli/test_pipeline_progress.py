"""What `toril pipeline up` says while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clocks import SteppedClock
from toril.cli.pipeline import _ProgressPrinter
from toril.spark.pipeline.supervisor.supervisor import Progress


def progress(error: Any = None) -> Progress:
    steps = {
        "silver": {"runs": 3, "seconds": 0.81, "error": error},
        "maintain": {"runs": 0, "seconds": 0.0, "error": None},
    }
    return Progress(batches=7, restarts=0, steps=steps, error=None)


def test_a_line_comes_every_ten_seconds_and_at_once_when_something_fails_or_works_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_progress = _ProgressPrinter(SteppedClock(0.0, 2.0, 3.0, 4.0, 15.0))
    calm = "7 batches since the last start; silver 0.8 s"
    printed = []
    for error in (None, None, "disk full", None, None):
        print_progress(progress(error))
        printed.append(capsys.readouterr().out.splitlines())
    assert printed == [[calm], [], [calm, "  silver: disk full"], [calm], [calm]]
