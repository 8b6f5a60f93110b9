"""The results of an examination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]
_ORDER: dict[Level, int] = {"problem": 0, "warning": 1, "note": 2, "ok": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One result. `problem`: jobs are lost or stuck, or soon will be; `warning`: they could be; `note`: information."""

    check: str
    level: Level
    message: str
    remedy: str = ""
    queue: str | None = None

    @property
    def rank(self) -> tuple[int, str, str]:
        """Worst first."""
        return _ORDER[self.level], self.check, self.queue or ""


def ok(check: str, message: str) -> Finding:
    return Finding(check=check, level="ok", message=message)


def note(check: str, message: str, remedy: str = "") -> Finding:
    return Finding(check=check, level="note", message=message, remedy=remedy)


def warning(check: str, message: str, remedy: str, queue: str | None = None) -> Finding:
    return Finding(check=check, level="warning", message=message, remedy=remedy, queue=queue)


def problem(check: str, message: str, remedy: str, queue: str | None = None) -> Finding:
    return Finding(check=check, level="problem", message=message, remedy=remedy, queue=queue)
