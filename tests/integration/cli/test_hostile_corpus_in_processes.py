"""The pipeline, and commands that run until they are stopped, on queues that a hostile program has filled."""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hostile_corpus import plant, problems_in
from tests.integration.cli.conftest import Start, Toril
from tests.integration.cli.hostile_calls import PIPELINE, PROCESSES, Call, ids_of
from tests.servers import Server

# What a process prints when it works: it is stopped then. The others end by themselves.
WORKS = {
    "worker handlers:handle": "job_id=without-hash",
    "worker handlers:plain": "FORGED",
    "dashboard --port": "dashboard: ",
    "pipeline up": "batches",
    "server start": "running",
}
StartServer = Callable[..., Server]


@pytest.fixture
def planted_server(start_valkey: StartServer, prefix: str) -> Server:
    """A server of its own: some of these commands use keys without a prefix of the test."""
    server = start_valkey()
    with server.client() as client:
        plant(client, prefix)
    return server


@pytest.mark.timeout(240)
def test_the_pipeline_keeps_and_shows_hostile_records(
    toril: Toril, valkey: Server, here: list[str], prefix: str, places: dict[str, str]
) -> None:
    with valkey.client() as client:
        plant(client, prefix)
    lake = ["--lake", places["lake"]]
    for one in PIPELINE:
        options = [*lake, *(here if one.on_server else [])]
        result = toril(*one.line(places, options))
        assert problems_in(result.out) + problems_in(result.err) == [], one.words
        assert result.code == 0 or (result.code == 1 and one.may_fail), result.err
        assert "TORIL_DEBUG" not in result.err and result.out.strip(), one.words
    rows = toril("pipeline", "query", "select distinct queue from silver.attempts", *lake, "--json").data
    assert "hostile" in {row["queue"] for row in rows} and len(rows) > 30
    assert_page_is_harmless(Path(places["page"]).read_text())


def assert_page_is_harmless(page: str) -> None:
    """A page shows hostile text, and none of it is markup, script, or hidden."""
    assert problems_in(page) == [] and "hostile" in page
    assert "<script>alert" not in page and 'onmouseover="' not in page and "FORGED" in page


@pytest.mark.timeout(300)
@pytest.mark.parametrize("one", PROCESSES, ids=ids_of(PROCESSES))
def test_a_process_works_among_hostile_records(
    start: Start, planted_server: Server, prefix: str, places: dict[str, str], folder: Path, one: Call
) -> None:
    server = ["--redis", planted_server.url]
    options = {"server": [], "demo": server}.get(one.words[0], [*server, "--prefix", prefix])
    process = start(*one.line(places, options), stderr=subprocess.STDOUT)
    printed = _output(process, WORKS.get(" ".join(one.words[:2])))
    assert problems_in(printed) == [] and printed.strip()
    assert "Traceback" not in printed and "TORIL_DEBUG" not in printed
    # uvicorn raises the signal again after it has stopped
    assert process.returncode == (-signal.SIGTERM if one.command == "dashboard" else 0), printed
    assert not (folder / "tripwire").exists()


def _output(process: subprocess.Popen[str], works: str | None) -> str:
    """Returns what a process printed until it ended; one that ends by itself is not stopped."""
    if works is None:
        return process.communicate(timeout=120)[0]
    assert process.stdout is not None
    printed = ""
    while works not in printed:
        line = process.stdout.readline()
        assert line, f"it ended: {printed}"
        printed += line
    if found := re.search(r"dashboard: (http://[^ ]+)", printed):
        assert_page_is_harmless(urllib.request.urlopen(found[1], timeout=30).read().decode())
    process.send_signal(signal.SIGTERM)
    return printed + process.communicate(timeout=60)[0]
