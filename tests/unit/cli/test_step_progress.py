"""The progress of `toril pipeline run` and `replay` by step."""

from __future__ import annotations

import pytest

from tests.clocks import SteppedClock
from toril.cli._step_progress import _Lines, step_progress


def test_each_step_that_takes_a_while_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _Lines(SteppedClock(0.0, 10.0, 12.5, 12.5, 12.6, 12.6, 20.0))
    for done, name in enumerate(("ingest", "silver", "gold")):
        lines.begin(name, done, 3)
    lines.end()
    assert capsys.readouterr().err.splitlines() == ["step 1 of 3: ingest, 2.5 s", "step 3 of 3: gold, 7.4 s"]


def test_nothing_is_written_to_standard_output_and_nothing_at_all_when_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for quiet in (False, True):
        with step_progress(quiet=quiet) as on_step:
            on_step("ingest", 0, 1)
    assert capsys.readouterr() == ("", "")
