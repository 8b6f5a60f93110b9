"""Checkpoints of the ingest query: one of its own for each start, or the one that the user names.

Guarantee: no two queries share a checkpoint, unless the user gives them one: neither a killed driver whose JVM lives
on for a moment nor a second pipeline can disturb a run. Nothing is lost with a checkpoint that is left behind:
positions are in the table. Only what means nothing is removed.
"""

from __future__ import annotations

import re
import shutil
import time
import uuid
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_OWN: Final = re.compile(r"run-\d+-[0-9a-f]{12}")
_CHECKSUM: Final = re.compile(r"\.(\d+)\.crc")
# A query that is at work writes more often; one that was idle for so long begins again with a new checkpoint.
_LEFT_BEHIND: Final = 3600.0


def new_checkpoint(folder: str) -> str:
    """A place in `folder` that nobody has used; names sort by time."""
    return f"{folder}/run-{int(time.time() * 1000)}-{uuid.uuid4().hex[:12]}"


def sweep(checkpoint: str) -> None:
    """Removes what earlier runs left beside `checkpoint` an hour ago or longer."""
    own = _local(checkpoint)
    if own is None or not _OWN.fullmatch(own.name):
        return
    for other in own.parent.glob("run-*"):
        if other != own and _OWN.fullmatch(other.name) and time.time() - _last_change(other) > _LEFT_BEHIND:
            shutil.rmtree(other, ignore_errors=True)


def _last_change(folder: Path) -> float:
    places = (folder, folder / "offsets", folder / "commits")
    return max((place.stat().st_mtime for place in places if place.exists()), default=time.time())


def mend(checkpoint: str) -> None:
    """Removes checksums whose entry is gone: Spark would take them for an entry that another query has written."""
    place = _local(checkpoint)
    if place is None:
        return
    for file in (*place.glob("offsets/.*.crc"), *place.glob("commits/.*.crc")):
        entry = _CHECKSUM.fullmatch(file.name)
        if entry is not None and not file.with_name(entry[1]).exists():
            file.unlink(missing_ok=True)


def _local(checkpoint: str) -> Path | None:
    """The folder, where this machine can look into it."""
    place = urlsplit(checkpoint)
    return Path(place.path) if place.scheme in ("", "file") else None
