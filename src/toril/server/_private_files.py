"""Folders and files that no other user can have prepared or can change.

Guarantee: a folder that another user owns, or can write to, or to which a symbolic link of another user leads, is
refused before anything in it is opened; files are opened without following symbolic links.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

_MOST_LINKS = 40  # in one path, as in the kernel
_ROOT = 0  # the user that may choose for all others


def check_links(path: Path) -> None:
    """Raises PermissionError if a symbolic link of the path is another user's: that user chooses where it leads."""
    done, left = Path("/"), [*reversed(path.absolute().parts[1:])]
    for _ in range(_MOST_LINKS):
        done, link = _first_link(done, left)
        if link is None:
            return
        owner = link.lstat().st_uid
        if owner not in (_ROOT, os.geteuid()):
            raise PermissionError(f"the symbolic link {link} belongs to another user (id {owner}); remove it")
        target = link.readlink()
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        done = Path("/") if target.is_absolute() else done


def _first_link(done: Path, left: list[str]) -> tuple[Path, Path | None]:
    """Takes names off the end of `left` up to the next link; returns the folder that was reached, and the link."""
    while left:
        name = left.pop()
        if name != ".." and (done / name).is_symlink():
            return done, done / name
        done = done.parent if name == ".." else done / name
    return done, None


def check_owned(directory: Path) -> None:
    """Raises PermissionError if another user owns the folder or can write to it; NotADirectoryError for a link."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{directory} is not a folder; remove it, or choose another folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{directory} belongs to another user (id {found.st_uid}); run as that user, or choose another folder"
        )
    if found.st_mode & 0o022:
        raise PermissionError(f"other users can write to {directory}; run `chmod go-w {directory}`")


def make_private(directory: Path) -> None:
    """Makes a folder that only its owner can enter; one that exists is checked first."""
    directory.mkdir(mode=0o700, exist_ok=True)
    check_owned(directory)
    if directory.lstat().st_mode & 0o077:
        directory.chmod(0o700)


def open_private(path: Path, flags: int) -> int:
    """Opens a regular file of this user and returns its descriptor; never follows a symbolic link."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(f"{path} is not a file of this user; remove it")
    return descriptor


def read_secret(path: Path) -> str | None:
    """Returns the first line of a file that only its owner can read; None if there is no file."""
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, encoding="ascii") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise PermissionError(f"other users can read {path}; run `chmod 600 {path}`")
        return file.readline().strip() or None


def create_secret(path: Path) -> None:
    """Writes a random password into a new file; one that exists stays."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_urlsafe(32)}\n")
    try:
        os.link(temporary, path)  # Whole at once, and only if there is none.
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
