"""File locks that are freed when their holder ends.

Guarantee: the kernel frees a lock when the last process that has the descriptor ends, however it ends. There is no
explicit unlock: a fork shares the lock, and an unlock in the child would free the lock of the parent.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from toril.server._private_files import open_private

_PID_BYTES = 12  # more than any process number has digits


def try_lock(path: Path) -> int | None:
    """Returns a descriptor that holds the lock, or None if another process holds it."""
    descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def lock_within(path: Path, seconds: float) -> int | None:
    """Like `try_lock`, but waits up to `seconds` for the present holder to end."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return descriptor


def write_own_pid(descriptor: int) -> None:
    """Writes the id of this process into the lock file: it names the holder to people and to other processes."""
    write_pid(descriptor, os.getpid())


def write_pid(descriptor: int, pid: int) -> None:
    """Overwrites the same number of bytes each time, which succeeds on a full disk, except for the first write."""
    with suppress(OSError):  # The lock is held without a process id, too.
        os.pwrite(descriptor, f"{pid}\n".encode().ljust(_PID_BYTES), 0)


def holder_of(path: Path) -> int | None:
    """Returns the process id in the lock file; the process may have ended."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None


def is_at(descriptor: int, path: Path) -> bool:
    """Returns whether the file of `descriptor` is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
