"""`toril demo`: the first thing that newcomers see, in a terminal and in a log."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.cli.conftest import Start, Toril
from tests.servers import Server

QUICK = ["--jobs", "40", "--pace", "0.2"]


def test_it_processes_its_jobs_and_ends_with_a_table(start: Start, folder: Path) -> None:
    process = start("demo", *QUICK)
    out, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out, "no control sequences where there is no terminal"
    assert "40 of 40 done" in out
    for row in ("added", "completed", "failed", "retries", "waiting", "running"):
        assert row in out
    assert not (folder / ".toril").exists(), "it leaves nothing behind"


def test_its_figures_can_be_read_by_programs(toril: Toril) -> None:
    report = toril("demo", *QUICK, "--json").data
    assert report["as_planned"] is True
    assert report["counts"]["completed"] + report["counts"]["failed"] == report["jobs"] == 40
    assert report["retries"] > 0 and report["failures"] == {"has no header": report["counts"]["failed"]}
    assert report["attempts"] == report["jobs"] + report["retries"]
    assert report["stream"] == {"jobs": 30, "dead_letters": 3, "replayed": 3, "completed": 30}


@pytest.mark.any_key
def test_it_runs_on_a_server_that_is_there(toril: Toril, valkey: Server) -> None:
    report = toril("demo", *QUICK, "--redis", valkey.url, "--json").data
    assert str(valkey.port) in report["server"]
    with valkey.client() as client:
        assert client.dbsize() == 0


def test_in_a_terminal_it_shows_bars(folder: Path) -> None:
    out = in_terminal("demo", *QUICK)
    assert "━" in out and "40/40" in out
    assert "every job had its planned outcome" in out


def test_no_server_is_left_when_it_is_over(toril: Toril) -> None:
    before = {one.pid for one in psutil.process_iter(["name"]) if one.info["name"] == "valkey-server"}
    assert toril("demo", *QUICK).code == 0
    mine = {one.pid for one in psutil.Process().children(recursive=True) if one.name() == "valkey-server"}
    assert not mine - before


def in_terminal(*words: str, seconds: float = 50, typed: bytes = b"", **environment: str) -> str:
    """What a command shows in a terminal of 120 columns, where somebody has typed something."""
    parent, child = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", **environment}
    process = subprocess.Popen(
        [sys.executable, "-m", "toril.cli", *words], stdin=child, stdout=child, stderr=child, env=settings
    )
    os.close(child)
    os.write(parent, typed)
    shown = b""
    try:
        while part := os.read(parent, 65_536):
            shown += part
    except OSError:
        pass  # the other side is closed: the command has ended
    finally:
        os.close(parent)
        assert process.wait(seconds) == 0, shown.decode(errors="replace")
    return shown.decode(errors="replace")


def test_a_demo_whose_server_is_away_fails_in_one_line(toril: Toril) -> None:
    result = toril("demo", "--redis", "unix:///nowhere/redis.sock")
    assert result.code == 1 and result.err.count("\n") == 1
    assert json.dumps(result.out) == '""'
