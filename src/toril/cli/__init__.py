"""The command `toril`.

Guarantee: the exit code is 0 for done, 1 for failed and 2 for input that could not be understood; an error is one line
on standard error, never a stack trace; what is asked for with `--json` is JSON on standard output and nothing else.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The entry point of the command."""
    try:
        from toril.cli._app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("rich", "typer"):
            raise
        print(f"toril: {error.name} is not installed; run `pip install 'toril[cli]'`", file=sys.stderr)
        sys.exit(1)
    sys.exit(run())
