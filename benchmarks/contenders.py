"""The contenders: toril and its rivals, each with its own installation and adapter.

Guarantee: each contender is listed once here, with its installation and start command. Its versions are pinned beside
its adapter in `rivals/`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ADAPTERS = Path(__file__).resolve().parent / "rivals"
# Ignored by git, removed by `make clean`.
INSTALL_ROOT = ROOT / ".cache" / "rivals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One library as the benchmarks see it."""

    name: str
    folder: str  # of its adapter, below `rivals/`
    label: str
    fast: bool = False  # runs more jobs, so that all runs take about the same time
    python: bool = True
    one_at_a_time: bool = False  # has no concurrency inside a process
    kind: str = ""  # list or stream, for libraries that offer both; app: tasks of an app of toril
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def install_folder(self) -> Path | None:
        """Where it is installed; None means the virtual environment that runs the benchmarks."""
        if self.folder != "toril":
            return INSTALL_ROOT / self.folder
        return INSTALL_ROOT / self.name if self.needs_uvloop else None

    @property
    def needs_uvloop(self) -> bool:
        return self.name == "toril-uvloop"

    @property
    def command(self) -> list[str]:
        adapter = ADAPTERS / self.folder
        if not self.python:
            return ["node", str(adapter / "adapter.mjs")]
        python = self.install_folder / "bin" / "python" if self.install_folder else sys.executable
        return [str(python), str(adapter / "adapter.py")]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "RIVAL_HOME": str(self.install_folder), **self.variables}


def _node(name: str, label: str, library: str) -> Contender:
    return Contender(
        name=name,
        folder="node",
        label=label,
        fast=True,
        python=False,
        variables={"RIVAL_LIBRARY": library},
    )


TORIL = Contender(name="toril", folder="toril", label="toril", fast=True)
TORIL_UVLOOP = Contender(
    name="toril-uvloop",
    folder="toril",
    label="toril on uvloop",
    fast=True,
    variables={"PYTHONPATH": str(ROOT / "src")},
)
NODE_5 = _node("node-5", "Node bullmq 5.62.0", "bullmq")
NODE_6 = _node("node-6", "Node bullmq 6.7.0", "bullmq6")
BULLMQ_PY = Contender(name="bullmq-py", folder="bullmq-py", label="bullmq-py 3.4.4")

# In the order of the tables. "Other Python libraries" are those after bullmq-py.
CONTENDERS: Mapping[str, Contender] = {
    one.name: one
    for one in (
        TORIL,
        TORIL_UVLOOP,
        NODE_5,
        NODE_6,
        BULLMQ_PY,
        Contender(name="dramatiq", folder="dramatiq", label="dramatiq 2.2.1"),
        Contender(name="huey", folder="huey", label="huey 3.5.4"),
        Contender(name="saq", folder="saq", label="saq 0.26.4"),
        Contender(name="arq", folder="arq", label="arq 0.28.0"),
        Contender(name="taskiq-list", folder="taskiq", label="taskiq 0.13.0, list", kind="list"),
        Contender(name="taskiq-stream", folder="taskiq", label="taskiq 0.13.0, stream", kind="stream"),
        Contender(name="streaq", folder="streaq", label="streaq 7.2.0"),
        Contender(name="docket", folder="docket", label="docket 0.27.0"),
        Contender(name="celery", folder="celery", label="celery 5.7.0"),
        Contender(name="rq", folder="rq", label="rq 2.12.0", one_at_a_time=True),
        # A task of an app, compared with a handler of a worker.
        Contender(name="toril-app", folder="toril", label="toril, App", fast=True, kind="app"),
        # Features of toril, compared with a plain handler.
        Contender(name="toril-groups", folder="toril", label="toril, ten groups", fast=True, kind="groups"),
        Contender(
            name="toril-batches", folder="toril", label="toril, batches of 50", fast=True, kind="batches"
        ),
        Contender(
            name="toril-metrics", folder="toril", label="toril, Prometheus metrics", fast=True, kind="metrics"
        ),
        Contender(
            name="toril-dashboard", folder="toril", label="toril, dashboard open", fast=True, kind="dashboard"
        ),
        # toril's list and stream queues, compared with rivals that use a list or a stream.
        Contender(name="toril-list", folder="toril", label="toril, list queue", fast=True, kind="list"),
        Contender(name="toril-stream", folder="toril", label="toril, stream queue", fast=True, kind="stream"),
    )
}

OTHER_PYTHON = (
    "dramatiq", "huey", "saq", "arq", "taskiq-list", "taskiq-stream", "streaq", "docket", "celery", "rq",
)  # fmt: skip
# Rivals that keep jobs in a list or a stream; they are compared with toril's list and stream queues.
ON_LISTS = ("dramatiq", "huey", "taskiq-list", "celery", "rq")
ON_STREAMS = ("taskiq-stream", "streaq")
FEATURES = ("toril-app", "toril-groups", "toril-batches", "toril-metrics", "toril-dashboard")


class UnknownContender(Exception):
    """A name on the command line that no contender has."""


def named(names: list[str]) -> list[Contender]:
    """Returns contenders by name, in the order of the tables."""
    unknown = [name for name in names if name not in CONTENDERS]
    if unknown:
        raise UnknownContender(f"{', '.join(unknown)}: choose among {', '.join(CONTENDERS)}")
    return [one for name, one in CONTENDERS.items() if name in names]
