"""bull-board as a client of our queues: its server, and what its REST routes answer."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from tests.interop.reference import NODE_SIDE

ANSWER_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body: JSON where the route gives JSON, text otherwise."""

    status: int
    body: Any


class Board:
    """A running bull-board 9.10.1 with BullMQ 5.62.0 behind it."""

    def __init__(self, redis_url: str, prefix: str, queues: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [shutil.which("node") or "node", str(NODE_SIDE / "board.mjs"), redis_url, prefix, *queues],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        hello = json.loads(self._process.stdout.readline())
        self.url: str = hello["url"]
        self.routes: set[tuple[str, str]] = {(method, path) for method, path in hello["routes"]}
        self.asked: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=ANSWER_TIMEOUT)

    def get(self, *path: str, **query: str | int) -> Answer:
        words = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
        return self._ask("GET", path, None, words)

    def put(self, *path: str, body: Any = None) -> Answer:
        return self._ask("PUT", path, {} if body is None else body)

    def patch(self, *path: str, body: Any) -> Answer:
        return self._ask("PATCH", path, body)

    def post(self, *path: str, body: Any) -> Answer:
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: Sequence[str], body: Any, query: str = "") -> Answer:
        self.asked.add((method, self._route(method, path)))
        address = f"{self.url}/api/" + "/".join(quote(part, safe="") for part in path)
        request = urllib.request.Request(
            f"{address}?{query}" if query else address,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT) as reply:
                return Answer(reply.status, _body(reply.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _body(error.read()))

    def _route(self, method: str, path: Sequence[str]) -> str:
        """The route that answers this path; of several that fit, the one with the fewest placeholders."""
        asked = ["", "api", *path]
        fitting = [route for verb, route in self.routes if verb == method and _fits(route.split("/"), asked)]
        return min(fitting, key=lambda route: route.count(":"), default="none")


def _fits(route: Sequence[str], path: Sequence[str]) -> bool:
    pairs = zip(route, path, strict=False)
    return len(route) == len(path) and all(part.startswith(":") or part == asked for part, asked in pairs)


def _body(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()
