"""The command `toril`.

Guarantee: the exit code is 0 for done, 1 for failed and 2 for input that could not be understood; an error is one line
on standard error, never a stack trace; what is asked for with `--json` is JSON on standard output and nothing else.
"""

from __future__ import annotations

import io
import sys

from toril.errors import ExtraMissing
from toril.protocol.extras import needed

__all__ = ["main"]


def main() -> None:
    """The entry point of the command."""
    try:
        with needed("cli"):
            from toril.cli._app import run
    except ExtraMissing as missing:
        sys.exit(f"toril: {missing}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale without some letter stops nobody
    sys.exit(run())
