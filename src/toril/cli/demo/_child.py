"""Runs one `toril` command as a child of the demo: `python -m toril.cli.demo._child dashboard --port 0`.

Guarantee: the child ends with its parent, also if that is killed: its standard input is a pipe that the parent holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Final

from toril.cli._app import run

_STOP_SECONDS: Final = 10.0  # seconds that a child has to end


class Child:
    """A command that runs in a process of its own."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def first_line(self) -> str:
        """Returns the first line that it prints; empty if it ends before."""
        return "" if self._process.stdout is None else self._process.stdout.readline()

    def kill(self) -> None:
        """Ends it as kill -9 does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it in order, if it runs."""
        if self.exit_code is None:
            self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        try:
            self._process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the other end is closed
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(run(sys.argv[1:]))
