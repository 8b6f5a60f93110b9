"""The types of values that come from users or other programs as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonValue: TypeAlias = Any
"""Data or a result of a job: any value with a JSON form. Without a model, its type is not checked."""
JsonObject: TypeAlias = dict[str, Any]
"""A decoded JSON object, or one that is about to be encoded."""
JsonFields: TypeAlias = Mapping[str, Any]
"""The same, read only."""
