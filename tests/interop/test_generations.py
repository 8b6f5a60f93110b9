"""toril, BullMQ 5.62.0 and BullMQ 6.7.0 on one queue: the table in docs/compatibility.md is what happens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.adapters import Side
from tests.interop.generations import PAIRS, ROWS, WORKS, Row, tabulated, three_clients, tried
from tests.interop.lockstep import START_MS
from tests.interop.reference import FIVE, SIX
from tests.interop.steps import Step
from toril.observe.doctor import Doctor

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- generations -->", "<!-- /generations -->"


@pytest.fixture(scope="module")
def sides() -> Iterator[dict[str, Side]]:
    with three_clients() as made:
        yield made


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


async def test_the_doctor_names_what_a_mix_of_generations_left(sides: dict[str, Side]) -> None:
    toril, five, six = sides["toril"], sides[FIVE], sides[SIX]
    toril.reset()
    for job_id, client in (("a", toril), ("b", five)):
        client.do(Step("add", {"name": "n", "data": {}, "opts": {"attempts": 1, "jobId": job_id}}))
        six.do(Step("pause"))
    diagnosis = await Doctor(f"redis://127.0.0.1:{_port(toril)}").examine()
    dangers = [one for one in diagnosis.problems() if one.check == "generation" and one.level == "problem"]
    assert ["`paused`" in one.message and "`wait`" in one.message for one in dangers] == [True]


def _port(side: Side) -> int:
    return int(side.client.connection_pool.connection_kwargs["port"])


def split(document: str) -> tuple[str, str, str]:
    before, _, rest = document.partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table, after


if __name__ == "__main__":
    with three_clients() as made:
        renewed = tabulated(made)
    before, _, after = split(DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(f"{before}{BEGIN}\n{renewed}\n{END}{after}", encoding="utf-8")
    sys.stdout.write(renewed + "\n")
