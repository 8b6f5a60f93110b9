"""Bash cuts words at colons and equals signs before it asks for completions."""

from __future__ import annotations

import pytest

from toril.cli._completion import join_words

CASES = {
    "nothing is cut": (["toril", "inspect", "em"], 2, ["toril", "inspect", "em"], 2, ""),
    "after a colon": (["toril", "inspect", "list", ":"], 3, ["toril", "inspect", "list:"], 2, "list:"),
    "behind a colon": (["toril", "inspect", "list", ":", "g"], 4, ["toril", "inspect", "list:g"], 2, "list:"),
    "the word before": (["toril", "inspect", "list", ":", "g", "x"], 5, ["toril", "inspect", "list:g", "x"], 3, ""),
    "an empty word after": (["toril", "retry", "list", ":", "g", ""], 5, ["toril", "retry", "list:g", ""], 3, ""),
    "an address": (
        ["toril", "inspect", "--redis", "redis", ":", "//h", ":", "6379", "em"],
        8,
        ["toril", "inspect", "--redis", "redis://h:6379", "em"],
        4,
        "",
    ),
    "an option with a value": (["toril", "top", "--queues", "=", "em"], 4, ["toril", "top", "--queues", "em"], 3, ""),
    "an option without one yet": (["toril", "top", "--queues", "="], 3, ["toril", "top", "--queues", ""], 3, ""),
    "both borders": (
        ["toril", "worker", "--queue", "=", "list", ":", "g"],
        6,
        ["toril", "worker", "--queue", "list:g"],
        3,
        "list:",
    ),
    "in the middle of the line": (["toril", "pa", "list", ":", "g"], 1, ["toril", "pa", "list:g"], 1, ""),
    "beyond the end": (["toril"], 1, ["toril"], 1, ""),
}  # fmt: skip


@pytest.mark.parametrize(("words", "place", "whole", "at", "kept"), CASES.values(), ids=CASES)
def test_split_words_are_joined(words: list[str], place: int, whole: list[str], at: int, kept: str) -> None:
    assert join_words(words, place) == (whole, at, kept)
