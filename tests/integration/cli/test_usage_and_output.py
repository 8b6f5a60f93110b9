"""What every command promises: help, exit codes, one line for an error, nothing destroyed unasked."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import typer.main

from tests.integration.cli.conftest import Start, Toril
from tests.integration.cli.test_demo import in_terminal
from tests.servers import Server, free_port
from toril.cli._app import app

COMMANDS = """
    demo server add worker queues inspect top pause resume drain clean retry promote remove cancel logs events dlq
    exporter pipeline doctor scripts bench flow schedulers groups
""".split()


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its path."""
    inner = getattr(command, "commands", None)
    if not inner:
        yield path, command
        return
    for name, one in inner.items():
        yield from leaves(one, (*path, name))


ALL = dict(leaves(typer.main.get_command(app)))


def test_every_command_of_the_plan_is_there() -> None:
    assert {path[0] for path in ALL} >= set(COMMANDS)


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_the_help_of_every_command_is_complete(toril: Toril, path: tuple[str, ...]) -> None:
    command = ALL[path]
    shown = toril(*path, "--help")
    assert shown.code == 0
    assert command.help and command.help.rstrip().endswith("."), "the command says what it does"
    silent = [one.name for one in command.params if one.name != "help" and not getattr(one, "help", None)]
    assert not silent, "every option and argument says what it is"


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_can_speak_json(path: tuple[str, ...]) -> None:
    assert any("--json" in one.opts for one in ALL[path].params)


def test_the_version_is_printed(toril: Toril) -> None:
    assert toril("--version").out.startswith("toril ")


MISTAKES = {
    "no such command": ["fly"],
    "no such option": ["queues", "--loudly"],
    "data that is not JSON": ["add", "emails", "send", "--data", "{to"],
    "an unknown kind of queue": ["add", "zset:emails", "send"],
    "a name with a colon": ["add", "list:a:b", "send"],
    "a state that does not exist": ["inspect", "emails", "--state", "sleeping"],
    "a backoff without seconds": ["add", "emails", "send", "--backoff", "fixed:soon"],
    "an option of another kind": ["add", "list:gen", "send", "--priority", "2"],
    "a priority out of range": ["add", "emails", "send", "--priority", "-1"],
    "neither ids nor all": ["retry", "emails"],
    "ids and all": ["remove", "emails", "x", "--all", "--yes"],
    "a queue of the wrong kind": ["pause", "list:gen"],
    "a module that does not exist": ["worker", "no_such_module:f", "--queue", "emails"],
    "a handler that is none": ["worker", "json:decoder", "--queue", "emails"],
    "a handler without a name": ["worker", "json", "--queue", "emails"],
    "a rate that is none": ["worker", "json:dumps", "--queue", "emails", "--rate-limit", "fast"],
    "a batch without a size": ["worker", "json:dumps", "--queue", "emails", "--batch-wait", "1"],
    "nothing to set for a group": ["groups", "set", "emails", "tenant-7"],
    "a weight without a group": ["groups", "set", "emails", "--weight", "2"],
    "a weight that is too large": ["groups", "set", "emails", "tenant-7", "--weight", "17"],
    "limits and none": ["groups", "set", "emails", "--concurrency", "1", "--no-limits"],
    "an order without its concurrency": ["groups", "set", "emails", "--keep-order"],
    "a filter that is none": ["dlq", "list", "list:gen", "--filter", "colour=red"],
}


@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES)
def test_input_that_is_not_understood_is_one_line_and_exit_code_2(
    toril: Toril, here: list[str], words: list[str]
) -> None:
    result = toril(*words, *([] if words[0] == "fly" else here))
    assert result.code == 2, result.err
    assert result.out == ""
    assert result.err.startswith("toril: ") and result.err.count("\n") == 1
    assert "Traceback" not in result.err


def test_a_server_that_is_away_is_one_line_and_exit_code_1_without_the_password(toril: Toril) -> None:
    port = free_port()
    result = toril("queues", "--redis", f"redis://user:canary-7781@127.0.0.1:{port}")
    assert result.code == 1
    assert result.err.count("\n") == 1 and "Traceback" not in result.err
    assert result.err.endswith(f"(server: redis://127.0.0.1:{port})\n")
    assert "canary-7781" not in result.err + result.out


def test_a_job_that_is_not_there_is_exit_code_1(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", *here)
    toril("add", "list:gen", "send", *here)
    toril("add", "stream:gen", "send", *here)
    for words in (
        ["inspect", "emails", "nobody"],
        ["logs", "emails", "nobody"],
        ["cancel", "emails", "x", "-y"],
        ["retry", "emails", "nobody"],
        ["promote", "emails", "nobody"],
        ["remove", "emails", "nobody", "-y"],
        ["retry", "list:gen", "nobody"],
        ["promote", "stream:gen", "nobody"],
        ["remove", "stream:gen", "nobody", "-y"],
    ):
        result = toril(*words, *here)
        assert (result.code, result.out) == (1, "")


@pytest.mark.parametrize(
    "words",
    [
        ["drain", "emails"],
        ["clean", "emails", "--state", "waiting"],
        ["remove", "emails", "order-1"],
        ["remove", "emails", "--all"],
        ["cancel", "emails", "order-1"],
        ["dlq", "purge", "emails", "--all"],
    ],
    ids=" ".join,
)
def test_commands_that_remove_jobs_do_nothing_without_a_confirmation(
    start: Start, toril: Toril, here: list[str], words: list[str]
) -> None:
    toril("add", "emails", "send", "--job-id", "order-1", *here)
    process = start(*words, *here, stdin=subprocess.PIPE)
    _, err = process.communicate("y\n", timeout=30)
    assert process.returncode == 1, "what comes through a pipe is no answer"
    assert "nothing was done" in err
    assert toril("inspect", "emails", "order-1", *here).code == 0


def test_an_answer_of_yes_in_a_terminal_is_enough(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", *here)
    assert "1 jobs removed" in in_terminal("drain", "emails", *here, typed=b"y\n")


def test_any_other_answer_in_a_terminal_is_a_no(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", *here)
    with pytest.raises(AssertionError, match="nothing was done"):
        in_terminal("drain", "emails", *here, typed=b"hm\n")
    assert toril("queues", "--json", *here).data[0]["states"]["waiting"] == 1


HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]bold[/red] \u202eexe.txt \x9b31m"


def test_hostile_job_data_is_shown_and_never_obeyed(toril: Toril, here: list[str]) -> None:
    data = json.dumps({"text": HOSTILE})
    added = toril("add", "emails", "[bold]send[/bold]", "--data", data, "--json", *here).data
    for words in (
        ["inspect", "emails"],
        ["inspect", "emails", added["ids"][0]],
        ["queues"],
        ["events", "emails"],
    ):
        shown = toril(*words, *here).out
        assert not set("\x1b\x07\x9b\u202e") & set(shown), words
    assert "[bold]send[/bold]" in toril("inspect", "emails", *here).out
    as_json = toril("inspect", "emails", added["ids"][0], "--json", *here)
    assert not set("\x1b\x07\x9b\u202e") & set(as_json.out)
    assert as_json.data["data"]["text"] == HOSTILE


def test_a_huge_value_is_cut_in_tables_and_whole_in_json(toril: Toril, here: list[str]) -> None:
    data = json.dumps({"text": "x" * 100_000})
    file_free = toril("add", "emails", "send", "--data", data, "--json", *here)
    assert len(toril("inspect", "emails", *here).out) < 5_000
    assert len(toril("inspect", "emails", file_free.data["ids"][0], *here).out) < 10_000
    job = toril("inspect", "emails", file_free.data["ids"][0], "--json", *here).data
    assert len(job["data"]["text"]) == 100_000


def test_a_reader_that_has_enough_ends_the_command_quietly(valkey: Server, prefix: str, toril: Toril) -> None:
    here = ["--redis", valkey.url, "--prefix", prefix]
    toril("add", "emails", "send", "--count", "500", *here)
    for asked in (["inspect", "emails", "--limit", "500"], ["top", "--json", "--every", "0.1"]):
        words = " ".join([sys.executable, "-m", "toril.cli", *asked, *here])
        script = f"set -o pipefail; {words} | head -c 20"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, f"server: {valkey.url}\n")


def test_without_an_address_the_embedded_server_of_this_folder_is_used(toril: Toril, folder: Path) -> None:
    assert toril("add", "emails", "send", "--count", "2").code == 0
    assert (folder / ".toril" / "data").is_dir()
    (listed,) = toril("queues", "--json").data
    assert listed["states"]["waiting"] == 2


def test_the_environment_names_the_server(
    toril: Toril, valkey: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORIL_REDIS_URL", valkey.url)
    assert toril("add", "emails", "send", "--prefix", prefix).code == 0
    assert len(toril("queues", "--json", "--redis", valkey.url, "--prefix", prefix).data) == 1


def test_an_embedded_server_is_started_shown_and_stopped(toril: Toril, folder: Path) -> None:
    assert toril("server", "status").code == 1
    started = toril("server", "start", "--detach", "--port", "0", "--json").data
    assert started["running"] is True
    try:
        assert toril("server", "url").out.strip() == started["url"]
        tcp_url = toril("server", "url", "--tcp").out.strip()
        assert tcp_url.startswith("redis://:") and tcp_url.endswith(f"@127.0.0.1:{started['port']}")
        assert toril("server", "status", "--json").data["users"] == started["users"]
        assert toril("add", "emails", "send").code == 0
    finally:
        stopped = toril("server", "stop", "--yes", "--json").data
    assert stopped["was_running"] is True
    assert toril("server", "status").code == 1


def test_scripts_are_counted_and_verified(toril: Toril, monkeypatch: pytest.MonkeyPatch) -> None:
    found = toril("scripts", "--json").data
    assert found["verified"] is True and found["count"] == len(found["scripts"]) == 50
    assert "50 official scripts" in toril("scripts").out

    from toril.commands.library import manifest

    monkeypatch.setitem(manifest(), "pause-7.lua", "0" * 64)
    broken = toril("scripts")
    assert broken.code == 1 and "pause-7.lua" in broken.err


def test_queues_and_jobs_complete_in_the_shell(toril: Toril, here: list[str]) -> None:
    job_id = toril("add", "emails", "send", *here).out.strip()
    toril("add", "errands", "run", *here)
    assert completions(["inspect", *here, "em"]) == ["emails"]
    assert completions(["inspect", *here, "emails", job_id[:4]]) == [job_id]


def test_bash_itself_completes_names_with_colons_after_an_address_with_colons(
    toril: Toril, here: list[str]
) -> None:
    toril("add", "list:letters", "send", "--delay", "60", "--job-id", "order-17", *here)
    options = " ".join(here)
    with Bash() as bash:
        bash.assert_answer(f"toril inspect {options} lis", "t:letters ")
        bash.assert_answer(f"toril inspect {options} list:", "letters ")
        bash.assert_answer(f"toril inspect {options} list:letters ord", "er-17 ")
        bash.assert_answer(f"toril top {options} --queues=list:let", "ters ")


class Bash:
    """An interactive Bash that has learnt our completions."""

    def __enter__(self) -> Self:
        self._parent, child = pty.openpty()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            env={**os.environ, "PATH": path, "TERM": "dumb", "PS1": "$ ", "COLUMNS": "400"},
        )
        os.close(child)
        self.assert_answer('eval "$(toril --show-completion bash)"; echo "rea""dy"\n', "ready", key="")
        return self

    def assert_answer(self, line: str, expected: str, *, key: str = "\t") -> None:
        """Types a line and a key, waits until the shell has written what is expected, and clears the line."""
        os.write(self._parent, (line + key).encode())
        shown = ""
        while expected not in shown:
            ready, _, _ = select.select([self._parent], [], [], 30)
            assert ready, f"the shell wrote only {shown!r}"
            shown += os.read(self._parent, 65_536).decode(errors="replace")
        os.write(self._parent, b"\x15")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._parent)


def completions(words: list[str]) -> list[str]:
    environment = {
        **os.environ,
        "_TORIL_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(["toril", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [str(Path(sys.executable).with_name("toril"))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout.split()
