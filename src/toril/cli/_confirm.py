"""The question before something is destroyed.

Guarantee: only a person at a terminal is asked; where there is none, as in a pipe or a script, the answer is no.
"""

from __future__ import annotations

import sys

import typer

from toril.cli._output import harmless, print_server


def ask(question: str, *, yes: bool) -> None:
    """Goes on only if somebody said yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.Abort
    print_server()
    # Standard output belongs to the result, so the question goes elsewhere.
    print(f"{harmless(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort
