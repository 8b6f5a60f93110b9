"""What tasks tell the driver about the files they wrote: one line of JSON for each task.

Guarantee: a file that no line names is never committed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from toril.lake.delta_table import DataFile

Files = Mapping[str, Sequence[DataFile]]  # by table


def line_of(files: Files) -> str:
    return json.dumps({name: [file.as_dict() for file in some] for name, some in files.items()})


def files_of(lines: Iterable[str]) -> dict[str, list[DataFile]]:
    """All files of some lines, by table; a table that no line names has none."""
    found: dict[str, list[DataFile]] = defaultdict(list)
    for line in lines:
        for name, files in json.loads(line).items():
            found[name] += [DataFile(**file) for file in files]
    return found
