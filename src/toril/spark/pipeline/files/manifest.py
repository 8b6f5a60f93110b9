"""Manifests: what a task reports to the driver about the files it wrote, as one line of JSON.

Guarantee: a file that no manifest names is never committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from toril.lake.delta_table import DataFile
from toril.spark.sources.positions import Stretch


@dataclass(frozen=True, slots=True)
class PartRead:
    """What a task of ingest read of a queue."""

    whole: Stretch  # of the queue
    part: Stretch  # of this task
    rows: int
    first_id: str | None  # None when there was nothing


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that a task wrote, by table; for tasks of ingest also the ranges of events that they read."""

    files: Mapping[str, Sequence[DataFile]]
    reads: tuple[PartRead, ...] = ()

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        return _decoder.decode(text)


_decoder: msgspec.json.Decoder[Manifest] = msgspec.json.Decoder(Manifest)


def files_in(lines: Iterable[str]) -> dict[str, list[DataFile]]:
    """Returns the files of all manifests, by table; a table that none names has an empty list."""
    found: dict[str, list[DataFile]] = defaultdict(list)
    for line in lines:
        for name, files in Manifest.from_json(line).files.items():
            found[name] += files
    return found
