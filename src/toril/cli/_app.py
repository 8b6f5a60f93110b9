"""The commands in one tree, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from toril import __version__
from toril.cli import (
    add,
    bench,
    cancel,
    clean,
    demo,
    dlq,
    doctor,
    drain,
    events,
    exporter,
    flow,
    inspect,
    logs,
    pause,
    pipeline,
    promote,
    queues,
    remove,
    resume,
    retry,
    schedulers,
    scripts,
    server,
    top,
    worker,
)
from toril.cli._completion import whole_words_of_bash
from toril.cli._output import harmless, print_server, unprinted_server
from toril.errors import InvalidOption, TorilError, redact

FAILED, MISUSED, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="toril",
    help="Job queues that speak BullMQ: run workers, look at queues, look after them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"toril {__version__}")
        raise typer.Exit


@app.callback()
def _toril(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


COMMANDS = (
    demo,
    server,
    add,
    worker,
    queues,
    inspect,
    top,
    pause,
    resume,
    drain,
    clean,
    retry,
    promote,
    remove,
    cancel,
    dlq,
    flow,
    schedulers,
    logs,
    events,
    doctor,
    exporter,
    pipeline,
    scripts,
    bench,
)
for command in COMMANDS:
    command.add_to(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; errors become one line on standard error."""
    words = None if arguments is None else list(arguments)
    try:
        with whole_words_of_bash():
            code = app(args=words, prog_name="toril", standalone_mode=False)
            print_server()
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        # Whoever read our output has enough: nothing failed, though Typer ends with 1 then. Python would complain once
        # more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # sorted below; what is not ours is raised again
        return _failed(error)
    finally:
        unprinted_server()  # whoever was not understood, or has enough, need not know it
    return code if isinstance(code, int) else 0


def _failed(error: Exception) -> int:
    if isinstance(error, typer.Abort):
        return _complain("nothing was done; answer yes, or give --yes", FAILED)
    if hasattr(error, "format_message"):
        # Typer's own errors, whichever Click it stands on.
        command = getattr(getattr(error, "ctx", None), "command_path", "toril")
        problem = f"{error.format_message()} (see `{command} --help`)"
        return _complain(problem, getattr(error, "exit_code", MISUSED))
    if isinstance(error, InvalidOption):
        return _complain(str(error), MISUSED)
    if isinstance(error, (TorilError, TimeoutError, OSError)):
        return _complain(str(error) or type(error).__name__, FAILED)
    if os.environ.get("TORIL_DEBUG"):
        raise error
    return _complain(f"{type(error).__name__}: {error} (TORIL_DEBUG=1 shows where)", FAILED)


def _complain(problem: str, code: int) -> int:
    server = unprinted_server()
    if server and code == FAILED:
        problem = f"{problem} ({server})"
    line = " ".join(redact(problem).split())
    print(f"toril: {harmless(line)}", file=sys.stderr)
    return code
