"""`toril worker --reload`: starts the worker again when a Python file below the current directory changes.

Guarantee: running jobs may finish within the time-out before the restart. A worker that could not start, because of an
error in a file, is started again at the next change.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from toril.cli._output import warn

POLL_SECONDS: Final = 0.3
_NOT_WATCHED: Final = frozenset({"node_modules", "__pycache__", "site-packages", "venv"})


async def run_reloading(arguments: Sequence[str]) -> int:
    """Runs the command without `--reload` in a child process until a signal; returns its exit code."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    try:
        while True:
            before = _changes()
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "toril.cli", *arguments, start_new_session=True
            )
            changed = await _changed(before, stopping)
            code = await _ended(child)
            if not changed:
                return code
            warn("files have changed; the worker starts again")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _changed(before: dict[str, int], stopping: asyncio.Event) -> bool:
    """Waits for a change; returns False after a signal."""
    while not stopping.is_set():
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await stopping.wait()
        except TimeoutError:
            if await asyncio.to_thread(_changes) != before:
                return True
    return False


async def _ended(child: asyncio.subprocess.Process) -> int:
    if child.returncode is None:
        child.send_signal(signal.SIGTERM)
    return await child.wait()


def _changes() -> dict[str, int]:
    """When each file was last changed."""
    found: dict[str, int] = {}
    for path in _files(Path.cwd()):
        try:
            found[str(path)] = path.stat().st_mtime_ns
        except OSError:
            continue  # it was just removed
    return found


def _files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in _NOT_WATCHED]
        for name in names:
            if name.endswith(".py"):
                yield Path(place) / name
