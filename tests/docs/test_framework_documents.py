"""The code in the documents about frameworks is that of the examples, which other tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NAMES = ("frameworks",)
PROGRAM = re.compile(r"```python\n(.*?)```", re.DOTALL)


def excerpts() -> list[object]:
    return [
        pytest.param(found[1], id=f"{name} {number}")
        for name in NAMES
        for number, found in enumerate(
            PROGRAM.finditer((REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")), 1
        )
    ]


@pytest.mark.parametrize("excerpt", excerpts())
def test_code_in_a_document_is_in_an_example(excerpt: str) -> None:
    examples = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "examples").rglob("*.py"))
    assert any(excerpt in text for text in examples)
