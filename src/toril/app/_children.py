"""Results of children as an argument of their parent: the data of the parent says which argument, and of which jobs.

    {"_children": {"argument": "pages", "keys": ["bull:crawl:7a…", "bull:crawl:9c…"], "many": true}, "title": "…"}

Guarantee: the results are in the order of the keys. A parent without this field in its data costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from toril.errors import PayloadMismatch
from toril.protocol.codec import from_json, to_json

CHILDREN_FIELD = "_children"
_MARK = b'"_children"'


class Children(msgspec.Struct, kw_only=True):
    """Which results become which argument."""

    argument: str
    keys: list[str]
    many: bool  # a list of all results; otherwise the result of the only child


class ParentJob(Protocol):
    """A job that can read the results of its children."""

    async def get_children_values(self) -> dict[str, object]:
        """The results by the keys of the children."""


def with_children_field(data: bytes, children: Children) -> bytes:
    """The data of a parent with the field."""
    return to_json({CHILDREN_FIELD: children, **from_json(data)})


async def with_results(data: bytes, job: ParentJob) -> bytes:
    """The data of a job with the results of its children in it, if it has the field."""
    if _MARK not in data:
        return data
    decoded = from_json(data, field="data")
    if not isinstance(decoded, dict) or CHILDREN_FIELD not in decoded:
        return data  # the text is in a value
    field = decoded.pop(CHILDREN_FIELD)
    try:
        children = msgspec.convert(field, Children)
    except msgspec.ValidationError as error:
        raise PayloadMismatch(f"data.{CHILDREN_FIELD}", str(error)) from None
    return to_json({**decoded, children.argument: _results(children, await job.get_children_values())})


def _results(children: Children, values: Mapping[str, object]) -> object:
    """The results; those of children whose failure the parent ignores are left out."""
    found: Sequence[object] = [values[key] for key in children.keys if key in values]
    if children.many:
        return found
    return found[0] if found else None
