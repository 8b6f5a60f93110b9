"""The tree of commands, and how their errors are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from toril import __version__
from toril.cli._commands import SETTINGS, CommandGroup
from toril.cli._completion import bash_completion_words
from toril.cli._output import print_server, take_server_line
from toril.errors import InvalidOption, TorilError, redact
from toril.protocol.printable import one_line

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130

app = typer.Typer(
    name="toril",
    cls=CommandGroup,
    help="Job queues compatible with BullMQ: run workers, add jobs, inspect and maintain queues.",
    **SETTINGS,
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


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; an error is one line on standard error."""
    args = None if arguments is None else list(arguments)
    try:
        with bash_completion_words():
            code = app(args=args, prog_name="toril", standalone_mode=False)
            print_server()
    except (BrokenPipeError, SystemExit) as end:
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        # The reader has closed the output, which is no failure, although Typer ends with 1. Without the redirection
        # Python would print an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # unknown errors are raised again with TORIL_DEBUG
        return _failed(error)
    finally:
        take_server_line()
    return code if isinstance(code, int) else 0


def _failed(error: Exception) -> int:
    if isinstance(error, typer.Abort):
        return _print_error("nothing was done; answer yes, or give --yes", FAILED)
    if hasattr(error, "format_message"):
        # Typer's own errors, with any version of Click.
        command = getattr(getattr(error, "ctx", None), "command_path", "toril")
        problem = f"{error.format_message()} (see `{command} --help`)"
        return _print_error(problem, getattr(error, "exit_code", USAGE_ERROR))
    if isinstance(error, InvalidOption):
        return _print_error(str(error), USAGE_ERROR)
    if isinstance(error, (TorilError, TimeoutError, OSError)):
        return _print_error(str(error) or type(error).__name__, FAILED)
    if os.environ.get("TORIL_DEBUG"):
        raise error
    return _print_error(f"{type(error).__name__}: {error} (TORIL_DEBUG=1 shows where)", FAILED)


def _print_error(problem: str, code: int) -> int:
    server = take_server_line()
    if server and code == FAILED:
        problem = f"{problem} ({server})"
    line = " ".join(redact(problem).split())
    print(f"toril: {one_line(line)}", file=sys.stderr)
    return code
