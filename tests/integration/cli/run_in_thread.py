"""The command from a test that has an event loop: called in a thread, its output caught there."""

from __future__ import annotations

import contextlib
import io

from tests.integration.cli.conftest import Result
from toril.cli._app import run


def called(*words: str) -> Result:
    """One command line; only one at a time, as standard output belongs to the process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return Result(code, out.getvalue(), err.getvalue())
