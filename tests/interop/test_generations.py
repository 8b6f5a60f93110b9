"""toril, BullMQ 5.62.0 and BullMQ 6.7.0 on one queue: the table in docs/compatibility.md is what happens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.command_side import CommandSide
from tests.interop.generations import ROWS, WORKS, Row, as_table, verdict
from tests.interop.reference import SIX, Reference
from tests.interop.sides import NodeSide, Side
from tests.interop.steps import Step
from tests.interop.twins import START_MS
from tests.servers import Server

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- generations -->", "<!-- /generations -->"
FIVE = "5.62.0"
PAIRS = (("toril", FIVE), (FIVE, "toril"), ("toril", SIX), (SIX, "toril"), (FIVE, SIX), (SIX, FIVE))


@pytest.fixture(scope="module")
def sides() -> Iterator[dict[str, Side]]:
    """All three kinds of clients on one server."""
    with Server.valkey() as server, Reference() as five, Reference(SIX) as six, ExitStack() as stack:
        made: dict[str, Side] = {
            "toril": CommandSide(server, batched=True),
            FIVE: NodeSide(five, server, FIVE),
            SIX: NodeSide(six, server, SIX),
        }
        for side in made.values():
            stack.callback(side.close)
        yield made


def tried(row: Row, first: Side, second: Side) -> str:
    for side in (second, first):
        side.reset()
    return verdict(row, first, second)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if "toril" in pair], ids=" then ".join)
def test_toril_works_beside_both_generations(sides: dict[str, Side], pair: tuple[str, str], row: Row) -> None:
    assert tried(row, sides[pair[0]], sides[pair[1]]) == WORKS


def test_the_document_shows_what_happens(sides: dict[str, Side]) -> None:
    _, table, _ = split(DOCUMENT.read_text(encoding="utf-8"))
    assert table.strip() == tabulated(sides), "run `python -m tests.interop.test_generations` to renew it"


def test_jobs_that_waited_through_a_pause_of_the_sixth_generation_wake_a_worker(
    sides: dict[str, Side],
) -> None:
    toril, six = sides["toril"], sides[SIX]
    toril.reset()
    toril.set_clock(START_MS)
    toril.do(Step("add", {"name": "n", "data": {}, "opts": {"attempts": 1, "jobId": "a"}}))
    six.do(Step("pause"))
    toril.do(Step("resume"))
    assert toril.client.zrange("bull:q:marker", 0, -1) == [b"0"]


def tabulated(sides: dict[str, Side]) -> str:
    columns = [f"{first}, then {second}" for first, second in PAIRS]
    cells = [[tried(row, sides[first], sides[second]) for first, second in PAIRS] for row in ROWS]
    return as_table(columns, cells)


def split(document: str) -> tuple[str, str, str]:
    before, _, rest = document.partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table, after


if __name__ == "__main__":
    with Server.valkey() as server, Reference() as five, Reference(SIX) as six:
        table = tabulated(
            {
                "toril": CommandSide(server, batched=True),
                FIVE: NodeSide(five, server),
                SIX: NodeSide(six, server),
            }
        )
    before, _, after = split(DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    sys.stdout.write(table + "\n")
