"""Every command on queues that a hostile program has filled: nothing breaks, nothing is forged, nothing is hidden."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile_corpus import MALFORMED_FIELDS, MEGABYTE, TEXTS, Planted, plant, problems_in
from tests.integration.cli.conftest import Result, Toril
from tests.servers import Server

READING = {
    "queues": ["queues"],
    "top": ["top", "--pictures", "1"],
    "top of one queue": ["top", "--pictures", "1", "--queues", "hostile"],
    "inspect": ["inspect", "hostile", "--limit", "1000"],
    "inspect failed jobs": ["inspect", "hostile", "--state", "failed"],
    "inspect a queue of wrong types": ["inspect", "wrong-type"],
    "inspect a list": ["inspect", "list:hostile", "--limit", "1000"],
    "inspect a stream": ["inspect", "stream:hostile", "--limit", "1000"],
    "events": ["events", "hostile", "--last", "1000"],
    "schedulers": ["schedulers", "list", "hostile"],
    "dead jobs": ["dlq", "list", "hostile", "--limit", "1000"],
    "dead jobs of a list": ["dlq", "list", "list:hostile", "--limit", "1000"],
    "dead jobs of a stream": ["dlq", "list", "stream:hostile", "--limit", "1000"],
    "doctor": ["doctor"],
    "metrics": ["exporter", "--once"],
}
CHANGING = {
    "retry": ["retry", "hostile", "--all"],
    "promote": ["promote", "hostile", "--all"],
    "groups": ["groups", "hostile"],
    "pause": ["pause", "hostile"],
    "resume": ["resume", "hostile"],
    "clean": ["clean", "hostile", "--state", "failed", "--yes"],
    "replay a list": ["dlq", "replay", "list:hostile", "--all"],
    "purge a stream": ["dlq", "purge", "stream:hostile", "--all", "--yes"],
    "promote a list": ["promote", "list:hostile", "--all"],
    "drain": ["drain", "hostile", "--delayed", "--yes"],
    "drain a list": ["drain", "list:hostile", "--yes"],
    "drain a stream": ["drain", "stream:hostile", "--yes"],
    "repair": ["doctor", "--repair", "--yes"],
    "remove": ["remove", "hostile", "--all", "--force", "--yes"],
}
# A queue whose keys have other types than BullMQ's cannot be listed, and BullMQ's own scripts end at a job that is no
# hash or has no numbers where they compute: the error is the result. Doctor finds something.
MAY_FAIL = {"inspect a queue of wrong types", "doctor", "repair", "retry", "promote", "clean", "remove"}


@pytest.fixture
def planted(valkey: Server, prefix: str) -> Iterator[Planted]:
    with valkey.client() as client:
        yield plant(client, prefix)


def assert_harmless(result: Result, name: str) -> None:
    """The command did its work, and its output holds nothing that a reader or a terminal obeys."""
    assert problems_in(result.out) + problems_in(result.err) == []
    assert result.code == 0 or (result.code == 1 and name in MAY_FAIL), result.err
    assert "Traceback" not in result.err and "TORIL_DEBUG" not in result.err, result.err


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("name", READING)
def test_a_reading_command_shows_hostile_records(
    toril: Toril, here: list[str], planted: Planted, name: str, as_json: bool
) -> None:
    result = toril(*READING[name], *(["--json"] if as_json else []), *here)
    assert_harmless(result, name)
    assert result.out.strip() or name in MAY_FAIL
    if as_json and result.out:
        assert [json.loads(line) for line in result.lines] if name in ("events", "top") else result.data


@pytest.mark.parametrize("name", CHANGING)
def test_a_changing_command_works_among_hostile_records(
    toril: Toril, here: list[str], planted: Planted, name: str
) -> None:
    assert_harmless(toril(*CHANGING[name], *here), name)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_one_hostile_job_is_shown_or_its_id_is_refused(
    toril: Toril, here: list[str], planted: Planted, name: str
) -> None:
    for command in (
        ["inspect", "hostile"],
        ["logs", "hostile"],
        ["flow", "show", "hostile"],
        ["dlq", "show", "hostile"],
    ):
        result = toril(*command, *here, "--", TEXTS[name])
        assert problems_in(result.out) + problems_in(result.err) == [], command
        assert "TORIL_DEBUG" not in result.err, command
        assert result.out.strip() or result.err.strip(), command


@pytest.mark.parametrize("field", MALFORMED_FIELDS)
def test_a_job_with_a_malformed_field_is_shown_in_full(
    toril: Toril, here: list[str], planted: Planted, field: str
) -> None:
    shown = toril("inspect", "hostile", f"malformed-{field}", *here)
    assert_harmless(shown, field)
    assert f"malformed-{field}" in shown.out
    as_json = toril("inspect", "hostile", f"malformed-{field}", "--json", *here)
    assert as_json.data["id"] == f"malformed-{field}"


def test_a_queue_with_a_bad_name_is_listed_and_blinds_nothing(
    toril: Toril, here: list[str], planted: Planted
) -> None:
    listed = toril("queues", "--json", *here)
    names = [one["queue"] for one in listed.data if one["kind"] == "bullmq"]
    # All names are there, each on one line, none twice; what cannot be read is said.
    assert len(names) == len(set(names)) >= len(planted.queue_names)
    assert "hostile" in names and "a\\nFORGED b" in names
    assert "\\xff\\xfequeue" in listed.err and "is no UTF-8" in listed.err
    assert "wrong-type" in listed.err


def test_doctor_is_never_healthy_about_what_it_could_not_examine(
    toril: Toril, valkey: Server, prefix: str, here: list[str]
) -> None:
    with valkey.client() as client:
        for name in (b"a\nb", b"\x1b[31m", b"x" * 300, b"\xff\xfe"):
            key = prefix.encode() + b":" + name + b":meta"
            client.hset(key, "version", "bullmq:5.0.0")
            report = toril("doctor", "--json", *here)
            assert report.data["healthy"] is False and report.code == 1, name
            assert any(one["check"] == "queues" for one in report.data["findings"]), name
            client.delete(key)


def test_the_exporter_counts_what_it_cannot_read_and_exports_the_rest(
    toril: Toril, here: list[str], planted: Planted
) -> None:
    metrics = toril("exporter", "--once", *here).out
    assert "bullmq_exporter_up 1.0" in metrics
    unreadable = next(
        line for line in metrics.splitlines() if line.startswith("bullmq_exporter_unreadable_queues ")
    )
    assert float(unreadable.split()[1]) >= 4
    assert 'bullmq_job_count{queue="hostile",state="waiting"}' in metrics


def test_the_rules_of_a_user_take_no_prefix_that_would_change_them(toril: Toril) -> None:
    for prefix in ("a b", "* +@all ~", "a\n+@all", "x" * 300, ""):
        refused = toril("doctor", "--acl", "toril", "--prefix", prefix)
        assert refused.code == 2 and "prefix" in refused.err, prefix
    escaped = toril("doctor", "--acl", "toril", "--prefix", "*").out
    assert "~\\*:*" in escaped


def test_a_name_of_a_megabyte_holds_no_command(
    toril: Toril, valkey: Server, prefix: str, here: list[str]
) -> None:
    with valkey.client() as client:
        for text in ("://a:" * (MEGABYTE // 5), "\n" * MEGABYTE):
            client.hset(
                f"{prefix}:big:1",
                mapping={"name": text, "data": "{}", "timestamp": "1", "failedReason": text},
            )
            client.zadd(f"{prefix}:big:failed", {"1": 1})
            client.hset(f"{prefix}:big:meta", "version", "bullmq:5.0.0")
            for words in (
                ["inspect", "big"],
                ["inspect", "big", "1"],
                ["top", "--pictures", "1"],
                ["dlq", "list", "big"],
            ):
                began = time.thread_time()
                result = toril(*words, *here)
                assert result.code == 0 and len(result.out) < 50_000
                # A second without coverage and imports; an expression that searches again and again needs minutes.
                assert time.thread_time() - began < 10, words


def test_the_screen_as_an_image_holds_no_script(
    toril: Toril, here: list[str], planted: Planted, tmp_path: Path
) -> None:
    image = tmp_path / "top.svg"
    assert toril("top", "--pictures", "1", "--svg", str(image), *here).code == 0
    drawn = image.read_text()
    assert "<script" not in drawn and 'onmouseover="' not in drawn and problems_in(drawn) == []
