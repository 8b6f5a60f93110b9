"""No text becomes markup by itself: `Markup` is called with constants and with SVG whose texts are escaped."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import toril.dashboard
from tests.hostile_corpus import TEXTS
from toril.plots import Series, bands, sparkline, stacked_bars

# Functions of `toril.plots`, which are tested below.
DRAWN = {"sparkline", "stacked_bars", "bands"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def markup_calls() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(Path(toril.dashboard.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Markup":
                yield f"{file.name}:{node.lineno}", node


def test_markup_is_made_of_constants_and_drawings_only() -> None:
    calls = dict(markup_calls())
    assert len(calls) > 10
    for place, call in calls.items():
        (given,) = call.args
        is_constant = isinstance(given, ast.Constant) and isinstance(given.value, str)
        is_drawn = isinstance(given, ast.Call) and isinstance(given.func, ast.Name) and given.func.id in DRAWN
        assert is_constant or is_drawn, place


def test_templates_mark_nothing_as_safe() -> None:
    folder = Path(toril.dashboard.__path__[0]) / "templates"
    texts = [file.read_text() for file in folder.rglob("*.html")]
    assert len(texts) > 10
    assert [text for text in texts if "|safe" in text.replace(" ", "") or "autoescape false" in text] == []


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_drawing_escapes_every_text(name: str) -> None:
    series = [Series(name=TEXTS[name], kind="completed", values=[1.0])] * 3
    for drawn in (stacked_bars([NOW], series, 60), bands([NOW], series, TEXTS[name], 60), sparkline(series)):
        assert "<script" not in drawn and 'onmouseover="' not in drawn
