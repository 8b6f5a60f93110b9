"""A web server or worker of an example in a process of its own, and a client that reads server-sent events."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.servers import free_port

REPOSITORY = Path(__file__).parents[2]
READY_WITHIN = 40.0  # seconds; imports take long on a busy machine


@contextlib.contextmanager
def program(*command: str, env: Mapping[str, str] | None = None, cwd: Path = REPOSITORY) -> Iterator[None]:
    """Runs a Python program until the block is left; then it gets SIGTERM, and must end."""
    merged = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})}
    process = subprocess.Popen([sys.executable, *command], env=merged, cwd=cwd)
    try:
        yield
        assert process.poll() is None, "the program has ended by itself"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextlib.contextmanager
def web_server(*command: str, env: Mapping[str, str], cwd: Path = REPOSITORY) -> Iterator[httpx.Client]:
    """Runs a web server, `{port}` in its arguments and environment replaced; yields a client when it answers."""
    port = free_port()
    placed = {name: value.format(port=port) for name, value in env.items()}
    with (
        program(*(part.format(port=port) for part in command), env=placed, cwd=cwd),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client,
    ):
        _wait_for(client)
        yield client


def _wait_for(client: httpx.Client) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while True:
        try:
            client.get("/")
        except httpx.TransportError:
            assert time.monotonic() < deadline, "the web server does not answer"
            time.sleep(0.05)
        else:
            return


def events_of(client: httpx.Client, path: str) -> list[tuple[str, Any]]:
    """Reads server-sent events until the server ends the stream."""
    found: list[tuple[str, Any]] = []
    with client.stream("GET", path) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((kind, json.loads(line.removeprefix("data: "))))
    return found
