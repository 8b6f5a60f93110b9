"""Checkpoints that a crash or a careful hand left in a state that Spark stumbles over.

Guarantee: only files that mean nothing are removed. The checkpoint is a hint in any case: positions are in the table.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_CHECKSUM: Final = re.compile(r"\.(\d+)\.crc")


def mend(checkpoint: str) -> None:
    """Removes checksums whose entry is gone: Spark would take them for an entry that another query has written."""
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file"):
        return
    for folder in ("offsets", "commits"):
        for file in Path(place.path, folder).glob(".*.crc"):
            entry = _CHECKSUM.fullmatch(file.name)
            if entry is not None and not file.with_name(entry[1]).exists():
                file.unlink(missing_ok=True)
