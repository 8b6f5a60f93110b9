"""The commands of `toril`, each imported when it is used.

Guarantee: `toril --help` and the completion of a command's name import no command; a command imports only its own
module.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import typer
from typer.core import TyperCommand, TyperGroup

Command: TypeAlias = TyperCommand | TyperGroup

# What `toril --help` says of each command: the first line of its own help. The module has the name of the command.
DESCRIPTIONS: Final = {
    "demo": (
        "Show everything in two minutes: jobs, workers, a dashboard, tables and Spark, on a temporary server."
    ),
    "server": "The embedded Valkey server of a folder: start, status, stop, url.",
    "add": "Add a job, the same job many times, or a job for each line of a file.",
    "worker": (
        "Run an app, a function, or the browser tasks, on the jobs of one or several queues until Ctrl-C or SIGTERM."
    ),
    "queues": "List all queues of the server, of all kinds, with the number of jobs in each state.",
    "inspect": "Show a queue with its newest jobs, or one job in full.",
    "top": "Show rates, states, workers, slow and failed jobs, updated until Ctrl-C.",
    "pause": "Stop all workers from taking jobs of the queue; running jobs continue.",
    "resume": "Let workers take jobs of a paused queue again.",
    "drain": "Remove all waiting jobs; running and ended jobs and the next runs of schedulers stay.",
    "clean": "Remove old jobs of one state.",
    "retry": "Put ended jobs back into the queue, by id or all that match. On list and stream queues: dead letters.",
    "promote": "Make delayed jobs ready to run now.",
    "remove": "Remove jobs and their children, or with --all the whole queue.",
    "cancel": "Cancel a job: a waiting job is removed, a running job is stopped by its worker.",
    "dlq": "Jobs that failed for good: list, show, replay, purge, export.",
    "flow": "Jobs that wait for other jobs: add, show.",
    "schedulers": "Schedulers, which add jobs by a cron pattern or at an interval: list, set, remove.",
    "groups": "Groups of jobs: list them with counts, set weights and limits, pause, resume.",
    "logs": "Print the log lines of a job.",
    "events": "Print the events of a queue: past ones, and with --follow new ones.",
    "dashboard": "Serve a web page about queues, jobs, failures and workers until Ctrl-C.",
    "doctor": "Examine the server and its queues; the exit code is 1 if there is a problem or a warning.",
    "exporter": "Serve Prometheus metrics of all queues under /metrics until Ctrl-C.",
    "pipeline": "Events and jobs as tables: bronze, silver, gold.",
    "scripts": "Check BullMQ's scripts against the manifest and list them with their hashes.",
    "bench": "Measure how fast jobs are added and processed in one process.",
}

SETTINGS: Final[dict[str, Any]] = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["--help", "-h"]},
}


def load(name: str) -> Command:
    """Imports a command."""
    app = typer.Typer(**SETTINGS)
    import_module(f"toril.cli.{name}").add_to(app)
    return cast("Command", typer.main.get_group(app).commands[name])


class _Commands(MutableMapping[str, Command]):
    """The commands by name. While `only_described` is true, each is its description alone."""

    def __init__(self) -> None:
        self._loaded: dict[str, Command] = {}
        self.only_described = False

    def __getitem__(self, name: str) -> Command:
        description = DESCRIPTIONS[name]
        if self.only_described:
            return TyperCommand(name, help=description)
        if name not in self._loaded:
            self._loaded[name] = load(name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(DESCRIPTIONS)

    def __len__(self) -> int:
        return len(DESCRIPTIONS)


class CommandGroup(TyperGroup):
    """The command `toril`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._table = _Commands()
        self.commands = cast("Any", self._table)

    @contextmanager
    def _descriptions(self) -> Iterator[None]:
        self._table.only_described = True
        try:
            yield
        finally:
            self._table.only_described = False

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx  # they are the same everywhere
        return list(self._table)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._descriptions():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        with self._descriptions():
            return super().shell_complete(ctx, incomplete)
