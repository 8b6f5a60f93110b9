"""The command `toril`.

Guarantee: the exit code is 0 for success, 1 for a failure and 2 for a usage error; an error is one line on standard
error, never a stack trace; with `--json` standard output is JSON and nothing else.
"""

from __future__ import annotations

import io
import sys

from toril.errors import ExtraMissing
from toril.protocol.extras import needed, require

__all__ = ["main"]


def main() -> None:
    """The entry point of the command."""
    try:
        require("cli", "rich")  # which is imported when a table is printed
        with needed("cli"):
            from toril.cli._app import run
    except ExtraMissing as missing:
        sys.exit(f"toril: {missing}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # characters that the locale lacks are escaped
    sys.exit(run())
