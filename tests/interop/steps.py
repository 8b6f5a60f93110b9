"""A step of a queue's history as plain data, and what became of it: a sequence can be kept as a file and replayed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parent / "recordings"


@dataclass(frozen=True, slots=True)
class Step:
    """One operation by its name in the Node driver, with its arguments in BullMQ's spelling."""

    op: str
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in self.args.items()
        )
        return f"{self.op}({words})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a side answered: a value, or the code under which it refused."""

    value: Any = None
    refused: str | None = None

    def __str__(self) -> str:
        return f"refused {self.refused}" if self.refused is not None else json.dumps(self.value)


@dataclass(frozen=True, slots=True)
class Fetched:
    """What both sides answer about a picked-up job; the rest is compared in the keyspace."""

    id: str
    attempts_started: int
    attempts_made: int
    deferred_failure: str | None

    def as_value(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "attempts_started": self.attempts_started,
            "attempts_made": self.attempts_made,
            "deferred_failure": self.deferred_failure,
        }


def save(steps: Iterable[Step], path: Path) -> None:
    rows = [{"op": step.op, **({"args": step.args} if step.args else {})} for step in steps]
    path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def load(path: Path) -> list[Step]:
    return [Step(row["op"], row.get("args", {})) for row in json.loads(path.read_text(encoding="utf-8"))]
