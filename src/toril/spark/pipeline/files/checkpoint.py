"""The checkpoint of the ingest query, if the user names one.

Guarantee: nothing is lost with a checkpoint: positions are in the table. Only checksums without a file are removed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_CHECKSUM: Final = re.compile(r"\.(\d+)\.crc")


def remove_orphan_checksums(checkpoint: str) -> None:
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
