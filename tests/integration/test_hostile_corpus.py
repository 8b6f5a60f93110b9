"""The hostile corpus itself: it can be stored, and its check finds what it is for."""

from __future__ import annotations

import pytest

from tests.hostile_corpus import FORGED, LONG_TEXTS, MEGABYTE, TEXTS, plant, problems_in
from tests.servers import Server

# Texts that may be printed as they are: they mislead a shell, a browser or a parser, and not a terminal.
INVISIBLE = {"a tabulator", "no width", "a byte order mark", "an emoji of several characters"}
HARMLESS = {name for name, text in TEXTS.items() if text.isprintable()} | INVISIBLE


def test_the_corpus_is_stored_under_the_prefix(valkey: Server, prefix: str) -> None:
    with valkey.client() as client:
        planted = plant(client, prefix)
        keys = list(client.scan_iter(match=f"{prefix}*", count=10_000))
    assert len(keys) > 10 * len(planted.queue_names)
    assert prefix.encode() + b":" + planted.undecodable_queue + b":meta" in keys


@pytest.mark.parametrize("name", sorted(set(TEXTS) - HARMLESS))
def test_a_text_that_is_printed_as_it_is_counts_as_a_problem(name: str) -> None:
    assert problems_in(f"queue {TEXTS[name]} end\n")


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_an_escaped_text_is_no_problem(name: str) -> None:
    assert problems_in(f"queue {TEXTS[name]!a} end\n") == []


def test_every_long_text_has_a_megabyte() -> None:
    assert {len(text) for text in LONG_TEXTS.values()} == {MEGABYTE}
    assert FORGED not in "".join(text[:100] for text in LONG_TEXTS.values())
