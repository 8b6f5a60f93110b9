"""`toril demo`: the first thing that newcomers see, in a terminal and in a log."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.integration.cli.conftest import Start, Toril
from tests.servers import Server

QUICK = ["--quick", "--jobs", "40", "--pace", "0.2"]


@pytest.mark.timeout(120)
def test_it_shows_its_parts_and_keeps_the_dashboard_until_ctrl_c(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    process = start("demo", *QUICK, "--keep")
    assert process.stdout is not None
    out = ""
    while "stays until Ctrl-C" not in out:
        line = process.stdout.readline()
        assert line, out
        out += line
    address = next(word for word in out.split() if word.startswith("http://127.0.0.1:"))
    with urllib.request.urlopen(address, timeout=20) as page:
        assert "video-generation" in page.read().decode()
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (0, "")
    assert f"source {sys.prefix}/bin/activate" in out + rest, "the environment is not active here"
    assert "\x1b" not in out + rest, "no control sequences where there is no terminal"
    for part in ("1  Server", "2  Producers", "3  Workers", "kill -9", "4  A stream queue", "✓ a poison job"):
        assert part in out
    assert "left out: tables and Spark, by --quick" in out
    left = {path.name for path in folder.iterdir()} - {".cache"}  # coverage writes there
    assert left == {"handlers.py"}
    assert not psutil.wait_procs(children, timeout=20)[1]


@pytest.mark.any_key
@pytest.mark.timeout(120)
def test_its_figures_can_be_read_by_programs_and_it_leaves_no_key_on_a_server(
    toril: Toril, valkey: Server
) -> None:
    report = toril("demo", *QUICK, "--redis", valkey.url, "--json").data
    assert str(valkey.port) in report["server"]
    assert report["as_planned"] is True
    workers = report["workers"]
    assert workers["counts"] == {
        "video-generation": {"completed": 13, "failed": 1},
        "transcode": {"completed": 5, "failed": 1},
        "thumbnails": {"completed": 6, "failed": 0},
        "emails": {"completed": 24, "failed": 0},
    }
    assert workers["jobs"] == 50 and workers["retries"] >= 2 and workers["scheduled"] == 4
    assert workers["killed"]["completed"] == workers["killed"]["jobs"] >= 2
    assert workers["poison"]["attempts"] == 1 and "SIGKILL" in workers["poison"]["reason"]
    assert report["stream"] == {"jobs": 60, "dead_letters": 3, "replayed": 3, "completed": 60}
    assert (report["tables"], report["scored"]) == (None, None)
    with valkey.client() as client:
        assert client.dbsize() == 0


@pytest.mark.timeout(120)
def test_in_a_terminal_it_shows_bars() -> None:
    out = in_terminal("demo", *QUICK, seconds=100)
    assert "━" in out and "14/14" in out and "render video" in out


@pytest.mark.timeout(120)
def test_a_demo_that_is_terminated_leaves_nothing_behind(start: Start) -> None:
    process = start("demo", *QUICK)
    assert process.stdout is not None
    while "kill -9" not in (line := process.stdout.readline()):
        assert line
    me = psutil.Process(process.pid)
    children = me.children(recursive=True)
    folders = set(Path(tempfile.gettempdir()).glob("toril-demo-*"))
    process.terminate()
    process.communicate(timeout=50)
    assert process.returncode == 130
    assert not psutil.wait_procs(children, timeout=20)[1]
    assert any(not folder.exists() for folder in folders)


@pytest.mark.timeout(120)
def test_without_java_it_makes_the_tables_and_says_what_it_left_out(tmp_path: Path) -> None:
    settings = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    run = subprocess.run(
        [sys.executable, "-m", "toril.cli", "demo", "--jobs", "40", "--pace", "0", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**settings, "PATH": str(tmp_path)},
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    (left_out,) = report["left_out"]
    assert "jobs on Spark: Spark needs Java 17 or later" in left_out and "install it" in left_out
    assert report["tables"]["engine"] == "driver" and report["scored"] is None
    figures = {row["queue"]: row for row in report["tables"]["figures"]}
    assert (figures["video-generation"]["completed"], figures["transcode"]["failed"]) == (13, 1)
    assert figures["video-generation"]["stalled"] >= 2, "the attempts of the worker that was killed"
    left = {path.name for path in tmp_path.iterdir()} - {".cache"}  # coverage writes there
    assert left == {"toril-demo-report.html"}


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
