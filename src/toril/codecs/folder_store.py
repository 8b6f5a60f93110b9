"""`FolderStore`: payloads as files in a folder, such as a network file system that all workers mount.

Guarantee: a file appears under its name when all of it is on disk. Other files in the folder are not touched.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from toril.protocol.duration import Duration, to_seconds

_OWN_FILE: Final = re.compile(r"[0-9a-f]{32}(\.part)?")


@dataclass(frozen=True, slots=True)
class FolderStore:
    """Stores payloads in `folder`, in 256 subfolders. The folder is made at the first write."""

    folder: str | Path

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with open(part, "xb", opener=_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def read(self, name: str, max_size: int) -> bytes | None:
        try:
            with self._path(name).open("rb") as file:
                return file.read(max_size + 1)
        except FileNotFoundError:
            return None

    def remove_older_than(self, age: Duration) -> int:
        """Removes payloads that were stored longer ago; returns how many.

        `age` must be longer than any job waits, runs and is kept: jobs whose payload is gone fail.
        """
        limit = time.time() - to_seconds("age", age, positive=True)
        return sum(self._removed(path, limit) for path in self._files())

    def _removed(self, path: Path, limit: float) -> bool:
        try:
            if path.stat().st_mtime >= limit:
                return False
            path.unlink()
        except FileNotFoundError:
            return False  # another process has removed it
        return True

    def _files(self) -> Iterator[Path]:
        for path in Path(self.folder).glob("[0-9a-f][0-9a-f]/*"):
            if _OWN_FILE.fullmatch(path.name):
                yield path

    def _path(self, name: str) -> Path:
        return Path(self.folder) / name[:2] / name


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
