"""Completion in a real Bash and a real zsh: what another program stored is offered only if no shell evaluates it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile_corpus import plant, texts_with_commands
from tests.servers import Server
from toril.cli._completion import is_safe_word

PROGRAMS = Path(sys.executable).parent
SECONDS = 40.0  # a busy machine starts Python for each completion
BASH = "source <(_TORIL_COMPLETE=source_bash toril)"
ZSH = "autoload -U compinit; compinit -u -D; source <(_TORIL_COMPLETE=source_zsh toril); setopt NO_BEEP"
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], BASH),
    "zsh": (["zsh", "-f", "-i"], ZSH),
}


class Shell:
    """An interactive shell in a terminal."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str]) -> None:
        command, preparation = SHELLS[name]
        self._terminal, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""
        self._commands = 0
        self.run(preparation)

    def run(self, line: str) -> str:
        """Runs a line, and returns what was shown until it ended."""
        self._commands += 1
        return self._send_until(f"{line}\r echo EN''D{self._commands}E\r", f"END{self._commands}E")

    def complete(self, line: str) -> str:
        """Types a line and two tabulators, and returns what was shown; the line is not run."""
        self._commands += 1
        # The answer of the shell to the next line shows that it has finished the completion.
        return self._send_until(f"{line}\t\t\x15 echo EN''D{self._commands}E\r", f"END{self._commands}E")

    def offers(self, value: str, line: str) -> bool:
        """Whether a value is offered; a completion gives up after a moment, which a busy machine can need for one."""
        return any(value in self.complete(line) for _ in range(10))

    def _send_until(self, text: str, awaited: str) -> str:
        os.write(self._terminal, text.encode())
        start, deadline = len(self.shown), time.monotonic() + SECONDS
        while awaited not in self.shown[start:]:
            ready, _, _ = select.select([self._terminal], [], [], deadline - time.monotonic())
            assert ready, f"the shell does not answer: {self.shown[start:]!r}"
            self.shown += os.read(self._terminal, 65536).decode(errors="replace")
            if "do you wish to see all" in self.shown[start:] or "Display all" in self.shown[start:]:
                os.write(self._terminal, b"y")
                start = len(self.shown)
        return self.shown[start:]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, valkey: Server, tmp_path: Path) -> Iterator[Shell]:
    environment = {
        "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
        "PS1": "$ ",
        "TORIL_REDIS_URL": valkey.url,
    }
    found = Shell(request.param, tmp_path, environment)
    yield found
    found.end()


def test_completion_runs_nothing_that_a_producer_chose(
    shell: Shell, valkey: Server, prefix: str, tmp_path: Path
) -> None:
    tripwire = tmp_path / "tripwire"
    with valkey.client() as client:
        planted = plant(client, prefix)
        for text in texts_with_commands(str(tripwire)):
            client.hset(f"{prefix}:tidy:{text}", mapping={"name": "n", "data": "{}", "timestamp": "1"})
            client.lpush(f"{prefix}:tidy:wait", text)
        for job_id in ("order-17", "mail_3.a@b/c+d"):
            client.hset(f"{prefix}:tidy:{job_id}", mapping={"name": "n", "data": "{}", "timestamp": "1"})
            client.lpush(f"{prefix}:tidy:wait", job_id)
        client.hset(f"{prefix}:tidy:meta", "version", "bullmq:5.0.0")
    command = f"toril inspect --prefix {prefix}"
    # Names that are safe are completed, in the middle of all others.
    assert shell.offers("order-17", f"{command} tidy ord")
    assert shell.offers("tidy", f"{command} ti")
    for line in (
        f"{command} ",
        f"{command} tidy ",
        f"{command} {planted.queue} ",
        f"{command} {planted.queue} \\$",
    ):
        offered = shell.complete(line)
        assert "FORGED" not in offered and "touch" not in offered.replace(line, "")
    # Nothing ran while it was offered, nor when a completed line is run.
    shell.run(f"{command} tidy order-17 >/dev/null 2>&1")
    assert not tripwire.exists() and list(tmp_path.glob("*tripwire*")) == []


@pytest.mark.parametrize(
    ("word", "safe"),
    [
        ("order-17", True),
        ("list:jobs.generic", True),
        ("stream:a", True),
        ("a,list:b", True),
        ("a@b/c+d_e.f", True),
        ("-rf", False),
        ("--help", False),
        ("other:a", False),
        ("a b", False),
        ("a$b", False),
        ("ü", False),
        ("a\n", False),
        ("", False),
        ("~", False),
        ("a" * 300, False),
    ],
)
def test_only_words_of_plain_characters_are_offered(word: str, safe: bool) -> None:
    assert is_safe_word(word) is safe
