"""Rows of tables of jobs, of all kinds of queue.

Guarantee: a job that cannot be read is a row that says so. What a row shows of data and errors went through `redact`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from toril.commands.envelope_pages import EnvelopeRow
from toril.commands.pages import PageRow, PageValue
from toril.dashboard._sources import ShownQueue
from toril.dashboard._texts import shortened, size
from toril.dashboard._view import View
from toril.protocol.codecs import EncodedPayload
from toril.protocol.state import JobState

_STRING: Final = r'"((?:[^"\\]|\\.)*)"'


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job in a table. Times are Unix milliseconds."""

    id: str  # what an action names: the job's id, or the position of an envelope
    job_id: str
    name: str
    data: str
    error: str
    added_ms: float | None
    started_ms: float | None
    ended_ms: float | None
    due_ms: float | None
    attempts: str
    priority: str
    worker: str
    progress: int | None
    notes: list[str]
    state: str


# What a row shows of a job in any state, and besides that in some states.
_FIELDS: Final = ("name", "data", "timestamp", "stc", "rjk", "parentKey", "deid")
_MORE_FIELDS: Final = {
    "failed": ("failedReason", "finishedOn", "attemptsMade", "atm"),
    "completed": ("processedOn", "finishedOn"),
    "active": ("processedOn", "progress", "pb"),
    "delayed": ("attemptsMade", "atm"),
}


def fields_of(state: str) -> tuple[str, ...]:
    """Returns the fields of a job that the rows of a state need."""
    return (*_FIELDS, *_MORE_FIELDS.get(state, ("priority",)))


def bullmq_row(view: View, queue: ShownQueue, state: JobState, row: PageRow) -> JobRow:
    """Returns the row of a BullMQ job."""
    fields = row.fields
    made = number_of(fields.get("attemptsMade")) or number_of(fields.get("atm")) or 0
    return JobRow(
        id=row.id,
        job_id=row.id,
        name=text_of(fields.get("name"), "name"),
        data=preview(view, queue, "data", fields.get("data")),
        error=preview(view, queue, "error", fields.get("failedReason")),
        added_ms=number_of(fields.get("timestamp")),
        started_ms=number_of(fields.get("processedOn")),
        ended_ms=number_of(fields.get("finishedOn")),
        # The score of a delayed job is its time and a counter in 12 bits.
        due_ms=row.score / 4096 if state is JobState.DELAYED and row.score is not None else None,
        attempts=f"{made:.0f}",
        priority=text_of(fields.get("priority"), "priority"),
        worker=text_of(fields.get("pb"), "worker"),
        progress=_percent(fields.get("progress")),
        notes=_notes(fields),
        state=state.value,
    )


def _notes(fields: Any) -> list[str]:
    notes = []
    if fields.get("name") is None and fields.get("timestamp") is None:
        notes.append("no data: the job was removed, or is broken")
    if (stalls := number_of(fields.get("stc")) or 0) > 0:
        notes.append(f"stalled {stalls:.0f}×")
    if fields.get("rjk"):
        notes.append("scheduled run")
    if fields.get("parentKey"):
        notes.append("child")
    if fields.get("deid"):
        notes.append("deduplicated")
    return notes


def text_of(value: PageValue, what: str = "value") -> str:
    if value is None:
        return ""
    return f"({what} of {size(value)})" if isinstance(value, int) else value.decode(errors="replace")


def preview(view: View, queue: ShownQueue, field: str, value: PageValue) -> str:
    """Returns the beginning of a value, redacted as a whole before it is cut."""
    if value is None or isinstance(value, int):
        return text_of(value, field)
    encoded = EncodedPayload.of(value)
    if encoded is not None:
        return str(encoded)
    if view.options.redact is None:
        return shortened(value.decode(errors="replace"), 240)
    return shortened(redacted_text(view, queue, field, value), 240)


def redacted_text(view: View, queue: ShownQueue, field: str, raw: bytes) -> str:
    """Returns a stored value after `redact`: JSON is passed as its value, other text as text."""
    text = raw.decode(errors="replace")
    if view.options.redact is None:
        return text
    try:
        value = json.loads(text) if field != "error" and field != "log" else text
    except (ValueError, RecursionError):
        value = text
    changed = view.options.redact(queue.id, field, value)
    return changed if isinstance(changed, str) else json.dumps(changed, ensure_ascii=False, default=str)


def number_of(value: PageValue) -> float | None:
    """Returns the number that a field holds; None if it holds none."""
    if not isinstance(value, bytes):
        return None
    try:
        found = float(value)
    except ValueError:
        return None
    return found if abs(found) < 1e17 else None


def _percent(value: PageValue) -> int | None:
    found = number_of(value)
    return None if found is None or not 0 <= found <= 100 else int(found)


def envelope_row(view: View, queue: ShownQueue, state: str, row: EnvelopeRow) -> JobRow:
    """Returns the row of an envelope; of one that was cut, what its ends tell."""
    fields = _envelope_fields(row)
    meta = fields.get("meta") if isinstance(fields.get("meta"), dict) else {}
    payload = fields.get("payload")
    data = size(row.length) if payload is None else json.dumps(payload, ensure_ascii=False)
    raw = data.encode(errors="replace")
    return JobRow(
        id=row.position,
        job_id=str(fields.get("job_id", "")),
        name=str(fields.get("task_type", "")),
        data=preview(view, queue, "data", raw) if payload is not None else f"(envelope of {data})",
        error=preview(view, queue, "error", str(fields.get("last_error", "")).encode(errors="replace")),
        added_ms=_iso_ms(meta.get("enqueue_ts") if isinstance(meta, dict) else None),
        started_ms=None,
        ended_ms=_iso_ms(fields.get("dlq_ts")),
        due_ms=row.score,
        attempts=f"{fields.get('attempts', '')}",
        priority="",
        worker="",
        progress=None,
        notes=[str(fields["dlq_reason"])] if fields.get("dlq_reason") else [],
        state=state,
    )


def _envelope_fields(row: EnvelopeRow) -> dict[str, Any]:
    if not row.tail:
        try:
            value = json.loads(row.text)
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {"task_type": "(unreadable)", "payload": None}
    head, tail = row.text.decode(errors="replace"), row.tail.decode(errors="replace")
    found: dict[str, Any] = {"meta": {}}
    for name, text in (("job_id", head), ("task_type", head), ("dlq_ts", tail), ("dlq_reason", tail)):
        match = re.search(rf'"{name}":{_STRING}', text)
        if match:
            found[name] = match[1]
    since = re.search(rf'"enqueue_ts":{_STRING}', tail)
    if since:
        found["meta"]["enqueue_ts"] = since[1]
    return found


def _iso_ms(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp() * 1000
    except (ValueError, OverflowError):
        return None
