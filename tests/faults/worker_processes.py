"""Worker processes that tests stop, freeze and kill, and the record of what they did.

Guarantee: every run of a handler is written down in Redis when it begins, by job; a process that the fleet started is
gone when the fleet has ended.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

ROOT = Path(__file__).parents[2]
MAX_WAIT_SECONDS = 30.0  # seconds: the machines are noisy, and a test that fails may take its time


class Fleet:
    """Processes with one worker each."""

    def __init__(self, url: str, prefix: str, queue: str, **options: Any) -> None:
        self._words = json.dumps({"url": url, "prefix": prefix, "queue": queue, **options})
        self.runs_key = runs_key(prefix)
        self.crew: list[subprocess.Popen[bytes]] = []

    def launch(self, count: int = 1, **environment: str) -> list[subprocess.Popen[bytes]]:
        """Starts processes and returns when each of them takes jobs."""
        fresh = [self._start(environment) for _ in range(count)]
        for one in fresh:
            assert one.stdout is not None
            line = one.stdout.readline()
            assert line == b"ready\n", f"the worker did not start: {line!r}"
        return fresh

    def _start(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker_program", self._words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self.crew.append(process)
        return process

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        self._forget(one, signal.SIGKILL)

    def terminate(self, one: subprocess.Popen[bytes]) -> int:
        """Asks one to stop; its exit code."""
        return self._forget(one, signal.SIGTERM)

    def _forget(self, one: subprocess.Popen[bytes], how: signal.Signals) -> int:
        one.send_signal(how)
        code = one.wait(MAX_WAIT_SECONDS)
        assert one.stdout is not None
        one.stdout.close()
        self.crew.remove(one)
        return code

    def end(self) -> None:
        for one in list(self.crew):
            one.send_signal(signal.SIGCONT)
            self.kill(one)

    def runs(self, client: redis.Redis) -> collections.Counter[str]:
        """How often the handler began, by job."""
        found: Any = client.lrange(self.runs_key, 0, -1)
        return collections.Counter(one.decode() for one in found)


def runs_key(prefix: str) -> str:
    return f"{prefix}:runs"
