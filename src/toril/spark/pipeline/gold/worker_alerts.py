"""Alerts about workers, computed without Spark.

Guarantee: the same alerts as those that Spark would find, or None: then Spark must compute them. Worker reports come
every few seconds, also when no job does; starting a Spark job for each would keep an idle machine busy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from toril.lake import Lake, LakeError, table_spec
from toril.spark.transforms.rules import Rule

_TABLES: Final = ("queue_minute", "queue_hour", "errors", "workers")
_KEY: Final = ("rule", "queue", "subject", "raised_at")


def worker_alerts(lake: Lake, rules: Sequence[Rule]) -> pa.Table | None:
    """Alerts that rules about workers raise and the table does not hold; None when a rule needs Spark."""
    about = [(rule, _tables_in(rule.sql)) for rule in rules]
    if any("workers" in tables and len(tables) > 1 for _, tables in about):
        return None
    try:
        asked = [row for rule, tables in about if "workers" in tables for row in _ask(lake, rule)]
        known = _known(lake) if asked else set()
        fresh = [row for row in asked if _key(row) not in known]
        return pa.Table.from_pylist(fresh, schema=table_spec("gold/alerts").schema)
    except (LakeError, pa.ArrowException, LookupError, TypeError):  # words or types that only Spark knows
        return None


def _tables_in(sql: str) -> set[str]:
    return {name for name in _TABLES if re.search(rf"\b{name}\b", sql, re.IGNORECASE)}


def _ask(lake: Lake, rule: Rule) -> list[dict[str, object]]:
    # The SQL is the operator's own; `Lake.query` lets it read the lake and nothing else.
    sql = f"with workers as (select * from gold.workers) select * from ({rule.sql}) where value > ?"
    return rule.alerts(lake.query(sql, [rule.threshold]).to_pylist())


def _known(lake: Lake) -> set[tuple[Any, ...]]:
    rows = lake.query(f"select {', '.join(_KEY)} from gold.alerts").to_pylist()
    return {_key(row) for row in rows}


def _key(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in _KEY)
