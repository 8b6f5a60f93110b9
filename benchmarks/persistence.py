"""The persistence of the server under measurement.

Guarantee: a server with an append-only file has the settings of the embedded server, so that figures are those of its
users. Each mode has its own server, which runs until the end of the benchmark.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Final, Literal, Self, get_args

from benchmarks.environment import Environment
from tests.servers import Server

Persistence = Literal["none", "everysec", "always"]
MODES: Final[tuple[Persistence, ...]] = get_args(Persistence)
# How tables call a mode.
LABELS: Final[dict[Persistence, str]] = {
    "none": "no persistence",
    "everysec": "append-only file, everysec",
    "always": "append-only file, always",
}


def settings_of(persistence: Persistence) -> dict[str, str]:
    """Returns the settings of a server with this persistence, by their names in its configuration file."""
    if persistence == "none":
        return {"save": "", "appendonly": "no"}
    return {"save": "", "appendonly": "yes", "appendfsync": persistence}


class Environments:
    """One environment for each persistence, started when it is first needed."""

    def __init__(self) -> None:
        self._open: dict[Persistence, Environment] = {}
        self._stack = ExitStack()

    def of(self, persistence: Persistence) -> Environment:
        if persistence not in self._open:
            settings = {name.replace("-", "_"): value for name, value in settings_of(persistence).items()}
            # The memory of one run must be freed before the next one is measured.
            server = self._stack.enter_context(Server.valkey(lazyfree_lazy_user_flush="no", **settings))
            self._open[persistence] = environment = Environment(server)
            self._stack.callback(environment.close)
        return self._open[persistence]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
