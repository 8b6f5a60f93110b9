"""The picture of `toril top` on screens of any size."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from toril.cli._top_screen import JobLine, Picture, render
from toril.commands.overview import EnvelopeOverview
from toril.observe.overview import QueueFigures, ServerOverview
from toril.transport.discovery import FoundQueue


def queue(number: int, *, waiting: int, workers: int) -> QueueFigures:
    name = f"a-queue-with-a-long-name-{number}"
    reports: list[Mapping[str, Any]] = [
        {"worker": f"host-{number}-{at}", "memory": 5e7, "state": "running"} for at in range(workers)
    ]
    overview: Any = EnvelopeOverview(
        waiting=waiting, active=0, scheduled=0, dead=0, ready_since_ms=None, oldest_dead_ms=None,
        totals={"completed": 1_234_567}, workers=reports, entries=0, consumers=0, worker_count=workers,
    )  # fmt: skip
    return QueueFigures(
        queue=FoundQueue("list", name, "msaas", "prod"), label=f"list:{name}", overview=overview, now_ms=0
    )


def picture(queues: int) -> Picture:
    lines = [
        JobLine(queue="emails", job_id="2ede92bf-853b-4fe2-9e77-c5589f4b8a2c", name="send", seconds=n, text="no " * 99)
        for n in range(5)
    ]  # fmt: skip
    overview = [queue(number, waiting=number % 2, workers=2) for number in range(queues)]
    return Picture(
        overview=ServerOverview(queues=overview, errors={}, now_ms=0), rates={}, slowest=lines, failing=lines
    )


def lines_of(shown: Picture, width: int, height: int | None) -> list[str]:
    screen = Console(width=width, file=io.StringIO(), markup=False, highlight=False)
    with screen.capture() as capture:
        screen.print(render(shown, width, height))
    return capture.get().splitlines()


@pytest.mark.parametrize("queues", [0, 1, 3, 40])
@pytest.mark.parametrize("height", [6, 10, 24, 60])
@pytest.mark.parametrize("width", [40, 80, 132])
def test_a_picture_fits_its_screen(queues: int, width: int, height: int) -> None:
    lines = lines_of(picture(queues), width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_on_a_usual_terminal_no_heading_is_cut_and_every_part_is_there() -> None:
    lines = lines_of(picture(3), 80, 24)
    text = "\n".join(lines)
    for heading in ("ready", "delayed", "completed", "failed/s", "oldest", "missed", "runs for", "why"):
        assert heading in text
    assert "2ede92bf-853b-4fe2-9e77-c5589f4b8a2c" in text, "an id that can be copied"


def test_what_does_not_fit_is_counted_and_queues_with_work_come_first() -> None:
    lines = lines_of(picture(40), 80, 24)
    assert any("of 40)" in line for line in lines) and any("of 80)" in line for line in lines)
    first = next(line for line in lines if line.startswith("list:"))
    assert " 1 " in first


def test_without_a_height_all_is_shown() -> None:
    assert len(lines_of(picture(40), 132, None)) > 120
