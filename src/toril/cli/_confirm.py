"""The question before jobs are removed.

Guarantee: the question is asked in a terminal only; without one, as in a pipe or a script, the answer is no.
"""

from __future__ import annotations

import sys

import typer

from toril.cli._output import print_server
from toril.protocol.printable import one_line


def confirm(question: str, *, yes: bool) -> None:
    """Raises typer.Abort unless the answer is yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.Abort
    print_server()
    # Standard output is for the result.
    print(f"{one_line(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort
