"""Every feature that docs/features.md claims for toril is linked to a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "features.md"
LINK = re.compile(r'\[yes\]\((?P<file>[^ ]+) "(?P<test>test_\w+)"\)')


def rows() -> list[list[str]]:
    lines = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_claim_is_linked_to_a_test_that_exists(row: list[str]) -> None:
    if row[1] == "no":
        return
    link = LINK.fullmatch(row[1])
    assert link is not None, f"{row[1]} is neither no nor a link to a test"
    file = DOCUMENT.parent / link["file"]
    assert re.search(rf"^ *(async )?def {link['test']}\(", file.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_row_has_every_column_and_no_other_words() -> None:
    found = rows()
    assert len(found) > 25
    assert {len(row) for row in found} == {14}
    assert {cell for row in found for cell in row[2:]} <= {"yes", "no", "part", "–"}
