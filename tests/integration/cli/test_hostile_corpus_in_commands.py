"""Every command on queues that a hostile program has filled: nothing breaks, nothing is forged, nothing is hidden."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from tests.hostile_corpus import MALFORMED_FIELDS, MEGABYTE, TEXTS, Planted, plant, problems_in
from tests.integration.cli.conftest import Result, Toril
from tests.integration.cli.hostile_calls import ALL, CHANGING, READING, WITH_TEXT, Call, ids_of
from tests.servers import Server
from toril.cli._app import app


@pytest.fixture
def planted(valkey: Server, prefix: str) -> Iterator[Planted]:
    with valkey.client() as client:
        yield plant(client, prefix)


def assert_harmless(result: Result, may_fail: bool) -> None:
    """The command did its work, and its output holds nothing that a reader or a terminal obeys."""
    assert problems_in(result.out) + problems_in(result.err) == []
    assert result.code == 0 or (result.code == 1 and may_fail), result.err
    assert "Traceback" not in result.err and "TORIL_DEBUG" not in result.err, result.err


def commands_of(command: object, start: str = "") -> Iterator[str]:
    """Yields the names of all commands of the tree."""
    children = getattr(command, "commands", None)  # of a group; Typer brings its own Click
    if not children:
        yield start
    for name, child in (children or {}).items():
        yield from commands_of(child, f"{start} {name}".strip())


def test_every_command_is_run_over_the_corpus() -> None:
    assert {one.command for one in ALL} == set(commands_of(get_command(app)))


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("one", READING, ids=ids_of(READING))
def test_a_reading_command_shows_hostile_records(
    toril: Toril, here: list[str], planted: Planted, places: dict[str, str], one: Call, as_json: bool
) -> None:
    options = [*(here if one.on_server else []), *(["--json"] if as_json and one.as_json else [])]
    result = toril(*one.line(places, options))
    assert_harmless(result, one.may_fail)
    assert result.out.strip() or one.may_fail
    if as_json and one.as_json and result.out:
        assert (
            [json.loads(line) for line in result.lines] if one.command in ("events", "top") else result.data
        )


@pytest.mark.parametrize("one", CHANGING, ids=ids_of(CHANGING))
def test_a_changing_command_works_among_hostile_records(
    toril: Toril, here: list[str], planted: Planted, places: dict[str, str], one: Call
) -> None:
    result = toril(*one.line(places, here))
    assert_harmless(result, one.may_fail)
    assert result.out.strip() or one.may_fail


def test_one_bad_job_in_each_state_is_left_counted_and_named(
    toril: Toril, here: list[str], planted: Planted
) -> None:
    for state, words in (
        ("failed", ["retry", "hostile", "--all"]),
        ("delayed", ["promote", "hostile", "--all"]),
        ("completed", ["clean", "hostile", "--state", "completed", "--yes"]),
        ("wait", ["drain", "hostile", "--yes"]),
    ):
        result = toril(*words, *here)
        assert result.code == 0 and f"no-hash-{state}" in result.err and " left " in result.err, words
        assert result.err.startswith("server: "), "the server stands before everything else"


@pytest.mark.parametrize("one", WITH_TEXT, ids=ids_of(WITH_TEXT))
def test_a_hostile_argument_is_refused_or_shown_harmlessly(
    toril: Toril,
    here: list[str],
    planted: Planted,
    one: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where a command in a text would make its file
    for name, text in TEXTS.items():
        if text == "--help" and "--" not in one.words:
            continue  # the value of an option cannot be told from an option
        server = here[:2] if "--prefix" in one.words else here
        result = toril(*one.line({"text": text}, server))
        assert problems_in(result.out) + problems_in(result.err) == [], name
        assert "TORIL_DEBUG" not in result.err and "Traceback" not in result.err, name
        assert result.out.strip() or result.err.strip(), name
    assert not (tmp_path / "tripwire").exists()


@pytest.mark.parametrize("field", MALFORMED_FIELDS)
def test_a_job_with_a_malformed_field_is_shown_in_full(
    toril: Toril, here: list[str], planted: Planted, field: str
) -> None:
    shown = toril("inspect", "hostile", f"malformed-{field}", *here)
    assert_harmless(shown, may_fail=False)
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


@pytest.mark.parametrize("words", [["inspect", "big", "1"], ["dlq", "show", "big", "1"]], ids=" ".join)
def test_data_of_a_megabyte_is_shown_in_part(
    toril: Toril, valkey: Server, prefix: str, here: list[str], words: list[str]
) -> None:
    data = json.dumps({"text": "a" * MEGABYTE})
    with valkey.client() as client:
        client.hset(f"{prefix}:big:1", mapping={"name": "n", "data": data, "timestamp": "1", "opts": "{}"})
        client.zadd(f"{prefix}:big:failed", {"1": 1})
        client.hset(f"{prefix}:big:meta", "version", "bullmq:5.0.0")
    shown = toril(*words, *here)
    assert shown.code == 0 and len(shown.out) < MEGABYTE / 4
    assert "…(--jsonhasall)" in "".join(shown.out.split())  # it is folded anywhere
    assert len(toril(*words, "--json", *here).out) > MEGABYTE


def test_the_screen_as_an_image_holds_no_script(
    toril: Toril, here: list[str], planted: Planted, tmp_path: Path
) -> None:
    image = tmp_path / "top.svg"
    assert toril("top", "--pictures", "1", "--svg", str(image), *here).code == 0
    drawn = image.read_text()
    assert "<script" not in drawn and 'onmouseover="' not in drawn and problems_in(drawn) == []
