"""File locks that end with their holder.

Guarantee: a lock taken here is freed by the kernel when the last process that has the descriptor ends, however it
ends. Nobody ever unlocks explicitly: a fork shares the lock, and an unlock in the child would free the parent's.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

_SIGNATURE_BYTES = 12  # more than any process number has digits


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock, or None if another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
    """Like `try_lock`, but waits for the present holder to end."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return descriptor


def sign(descriptor: int) -> None:
    """Writes who holds the lock into its file: for people, and to find a server that outlived its keeper."""
    write_pid(descriptor, os.getpid())


def write_pid(descriptor: int, pid: int) -> None:
    """Always as many bytes, over the old ones: on a full disk that needs no room, except for a first signature."""
    with suppress(OSError):  # The lock holds without a signature.
        os.pwrite(descriptor, f"{pid}\n".encode().ljust(_SIGNATURE_BYTES), 0)


def holder_of(path: Path) -> int | None:
    """The process that signed the lock last; whether it lives is another question."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the file behind `descriptor` is still the one that others find at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
