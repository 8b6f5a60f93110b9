"""Words of SQL that Spark and DuckDB do not share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How an engine writes what it has no common word for."""

    json_object: str  # text with {} for names and values


SPARK: Final = Dialect(json_object="to_json(named_struct({}))")
DUCKDB: Final = Dialect(json_object="cast(json_object({}) as string)")
