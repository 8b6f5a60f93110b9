"""Progress, log lines and results of jobs: how they are stored and read."""

from __future__ import annotations

from typing import Final

from toril.errors import InvalidOption, MalformedValue, ResultTooLarge
from toril.protocol.codec import from_json, to_json
from toril.protocol.json_types import JsonValue

# As much as a job's data may have.
_MAX_CHECKPOINT: Final = 10 * 1024 * 1024


def progress_to_json(progress: object) -> bytes:
    """Returns progress as it is stored; raises if it is a number outside of 0 to 100."""
    is_bool = isinstance(progress, bool)
    if isinstance(progress, (int, float)) and not is_bool and not 0 <= progress <= 100:
        raise InvalidOption("progress", f"is {progress}", "give 0 to 100, or an object of your own")
    return to_json(progress, field="progress")


def checkpoint_to_json(value: object) -> bytes:
    """Returns a checkpoint as it is stored; raises if it is larger than the data of a job may be."""
    raw = to_json(value, field="checkpoint")
    if len(raw) > _MAX_CHECKPOINT:
        problem = f"the checkpoint has {len(raw)} bytes of JSON, and at most {_MAX_CHECKPOINT} are stored"
        raise ResultTooLarge(f"{problem}; store it elsewhere and save a reference")
    return raw


def log_line(line: object) -> str:
    """Returns a line of a log as text; lone surrogates are replaced."""
    return str(line).encode("utf-8", "replace").decode()


def returned(raw: str | bytes | None) -> JsonValue:
    """Returns a stored return value; None for one that is not JSON, as in Node."""
    if not raw:
        return None
    try:
        return from_json(raw, field="returnvalue")
    except MalformedValue:
        return None
