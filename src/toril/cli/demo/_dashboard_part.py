"""The dashboard of the demo, in a process of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from toril.cli.demo._child import Child
from toril.cli.demo._stream_part import ENV
from toril.errors import ExtraMissing, TorilError
from toril.protocol.extras import require


def missing_packages() -> str:
    """Returns why there is no dashboard; empty if there can be one."""
    try:
        require("dashboard", "jinja2", "starlette", "uvicorn")
    except ExtraMissing as missing:
        return str(missing)
    return ""


@contextlib.contextmanager
def running_dashboard(url: str, prefix: str, lake: Path) -> Iterator[str]:
    """Yields the address of a dashboard that runs for the block."""
    server = ("--redis", url, "--prefix", prefix, "--env", ENV, "--lake", str(lake))
    child = Child("dashboard", "--port", "0", "--allow-writes", "--json", *server)
    try:
        line = child.first_line()
        if not line:
            raise TorilError("the dashboard did not start; `toril dashboard` says why")
        yield json.loads(line)["url"]
    finally:
        child.stop()
