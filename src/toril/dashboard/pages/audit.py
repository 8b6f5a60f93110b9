"""The audit: who did what, newest first."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from toril.commands.audit import read_audit
from toril.dashboard._view import Page, View
from toril.errors import InvalidOption, TorilError

AT_ONCE: Final = 200
_ENTRY: Final = re.compile(r"\d{1,20}-\d{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One act, and how it ended."""

    id: str
    server: str
    at_ms: int
    user: str
    role: str
    act: str
    queue: str
    detail: str
    outcome: str


async def audit(view: View) -> Page:
    before = view.query("before")
    if before and not _ENTRY.fullmatch(before):
        raise InvalidOption("before", f"{before[:50]!r} is not an entry", "take the one of a page's link")
    rows: list[AuditRow] = []
    errors: dict[str, str] = {}
    for source in view.sources.all:
        try:
            found = await source.run(read_audit(source.prefix, before=before, count=2 * AT_ONCE))
        except TorilError as error:
            errors[source.name] = str(error)
            continue
        outcomes = {fields["of"]: fields.get("outcome", "") for _, fields in found if "of" in fields}
        rows += (
            AuditRow(
                id=entry,
                server=source.name,
                at_ms=int(entry.partition("-")[0]),
                user=fields.get("user", ""),
                role=fields.get("role", ""),
                act=fields.get("act", ""),
                queue=fields.get("queue", ""),
                detail=fields.get("detail", ""),
                outcome=outcomes.get(entry, ""),
            )
            for entry, fields in found
            if "act" in fields and view.access.sees(fields.get("queue", ""))
        )
    rows.sort(key=lambda one: -one.at_ms)
    shown = rows[:AT_ONCE]
    values = {"rows": shown, "errors": errors, "now_ms": time.time() * 1000}
    values["next"] = shown[-1].id if len(rows) > AT_ONCE and len(view.sources.all) == 1 else ""
    return Page(template="audit", title="Audit", place="audit", values=values)
