"""One job: data, options, result, attempts, log, stack trace, and how to add it again.

A job that Redis no longer has is shown from the lake, marked as history.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from markupsafe import Markup

from toril.commands import envelope_pages, envelopes, pages, read, server
from toril.commands.pages import ChildCounts, FlowNode, PageValue
from toril.dashboard._code import code_examples
from toril.dashboard._flow_graph import draw_flow
from toril.dashboard._flow_tree import flow_nodes, tree_command
from toril.dashboard._rows import envelope_row, redacted_text, text_of
from toril.dashboard._sources import ShownQueue
from toril.dashboard._texts import FOLDED_BYTES, pretty_json, shortened
from toril.dashboard._view import Page, PageNotFound, View
from toril.protocol.codecs import EncodedPayload
from toril.protocol.state import JobState

LOG_LINES: Final = 200
# Children in the picture of a job; the page of the flow has more.
MOST_RELATIVES: Final = 8
# All values of a job that are shown at once; longer ones are loaded on demand.
SHOWN_BYTES: Final = 192 * 1024
_JSON_FIELDS: Final = {"data": "data", "opts": "options", "returnvalue": "result", "progress": "progress"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownValue:
    """A value of a job as it is shown: its text, or its size if it is too large."""

    name: str
    title: str
    text: str
    is_json: bool
    size: int
    is_cut: bool = False


async def job(view: View) -> Page:
    queue = await view.queue()
    job_id = view.query("id")
    if not job_id:
        raise PageNotFound("the address names no job")
    if not queue.is_bullmq:
        return await _envelope(view, queue, job_id)
    keys = queue.keys
    names, state, log, lock, now, tree = await queue.source.run_all(
        pages.job_field_names(keys, job_id),
        read.get_state(keys, job_id),
        envelope_pages.text_page(keys.logs(job_id), newest_first=True, limit=LOG_LINES),
        read.get_lock(keys, job_id),
        server.server_time(),
        tree_command(queue, job_id, max_depth=2, max_children=MOST_RELATIVES, max_nodes=MOST_RELATIVES + 1),
    )
    if not names:
        return await _removed(view, queue, job_id)
    fields = await queue.source.run(
        pages.job_fields(keys, job_id, names, longest=FOLDED_BYTES, max_bytes=SHOWN_BYTES)
    )
    values = _values_of_fields(view, queue, fields) | {
        "job_id": job_id,
        "state": JobState.parse(state).value,
        "facts": _facts(fields, lock is not None),
        "log": [_line(view, queue, row) for row in reversed(log.rows)],
        "log_total": log.total,
        "times": _times(fields, now * 1000),
        "attempts": await view.history.attempts(queue.label, job_id),
        "now_ms": now * 1000,
        "children": tree[0].children,
        "picture": await _relatives(view, queue, tree, fields),
    }
    return Page(template="job", title=f"{values['name']} {job_id}", place="overview", values=values)


def _values_of_fields(view: View, queue: ShownQueue, fields: Mapping[str, PageValue]) -> dict[str, Any]:
    return {
        "queue": queue,
        "fields": fields,
        "name": text_of(fields.get("name"), "name"),
        "values": _values(view, queue, fields),
        "error": _text(view, queue, "error", fields.get("failedReason")),
        "traces": _traces(view, queue, fields.get("stacktrace")),
        "parent": _parent(fields.get("parent")),
        "trace_link": _trace_link(view, fields.get("opts")),
        "code": code_examples(queue, fields, view),
        "raw": {name: _raw(view, queue, name, value) for name, value in sorted(fields.items())},
        "show_raw": view.query("raw") == "1",
    }


def _values(view: View, queue: ShownQueue, fields: Mapping[str, PageValue]) -> list[ShownValue]:
    shown = []
    for name, title in _JSON_FIELDS.items():
        value = fields.get(name)
        if value is None or (name == "progress" and value in (b"0", b"")):
            continue
        if isinstance(value, int):
            shown.append(ShownValue(name=name, title=title, text="", is_json=False, size=value, is_cut=True))
            continue
        text, is_json = pretty_json(redacted_text(view, queue, title, value))
        encoded = EncodedPayload.of(value)
        heading = title if encoded is None else f"{title}: {encoded}"
        shown.append(ShownValue(name=name, title=heading, text=text, is_json=is_json, size=len(value)))
    return shown


def _facts(fields: Mapping[str, PageValue], is_locked: bool) -> dict[str, str]:
    """Returns small facts by their names, those that are there."""
    options = options_of(fields.get("opts"))
    limit = options.get("attempts", 1)
    made = text_of(fields.get("attemptsMade")) or text_of(fields.get("atm")) or "0"
    facts = {
        "attempts": f"{made} of {limit}",
        "pickups": text_of(fields.get("ats")),
        "stalled": text_of(fields.get("stc")),
        "priority": text_of(fields.get("priority")),
        "worker": text_of(fields.get("pb")),
        "lock": "held" if is_locked else "",
        "scheduler": text_of(fields.get("rjk")),
        "deduplication": text_of(fields.get("deid")),
        "will fail": text_of(fields.get("defa")),
    }
    return {name: value for name, value in facts.items() if value and value != "0"}


def options_of(value: PageValue) -> dict[str, Any]:
    """Returns the options as they are stored; none if they cannot be read."""
    if not isinstance(value, bytes):
        return {}
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(view: View, queue: ShownQueue, field: str, value: PageValue) -> str:
    return text_of(value, field) if not isinstance(value, bytes) else redacted_text(view, queue, field, value)


def _traces(view: View, queue: ShownQueue, value: PageValue) -> list[str]:
    if not isinstance(value, bytes):
        return [] if value is None else [text_of(value, "stack traces")]
    text = redacted_text(view, queue, "error", value)
    try:
        traces = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    return [str(one) for one in traces][-10:] if isinstance(traces, list) else [str(traces)]


def _line(view: View, queue: ShownQueue, row: Any) -> str:
    text = _text(view, queue, "log", row.text)
    return text if not row.tail else f"{text} … ({row.length:,} bytes)"


def _raw(view: View, queue: ShownQueue, name: str, value: PageValue) -> str:
    known = {"opts": "options", "returnvalue": "result", "failedReason": "error", "stacktrace": "error"}
    return shortened(_text(view, queue, known.get(name, name), value), 2000)


def _times(fields: Mapping[str, PageValue], now_ms: float) -> dict[str, float | None]:
    """Returns when the job was added, became ready, was taken and ended; and how long it waited and ran."""
    added, started, ended = (_ms(fields.get(name)) for name in ("timestamp", "processedOn", "finishedOn"))
    delay = _ms(fields.get("delay")) or 0
    ready = added + delay if added else None
    wait = (started or now_ms) - ready if ready else None
    run = (ended or now_ms) - started if started else None
    return {
        "added": added,
        "ready": ready if delay else None,
        "started": started,
        "ended": ended,
        # The hash has the times of the last attempt only.
        "restarted": (_ms(fields.get("ats")) or 0) > 1,
        "wait": None if wait is None else max(0.0, wait),
        "run": None if run is None else max(0.0, run),
    }


def _ms(value: PageValue) -> float | None:
    try:
        found = float(value) if isinstance(value, bytes) else None
    except ValueError:
        return None
    return found if found is not None and 0 < found < 1e15 else None


async def _relatives(
    view: View, queue: ShownQueue, tree: list[FlowNode], fields: Mapping[str, PageValue]
) -> Markup | None:
    """Returns the job between its parent and its children as a picture; None if it has neither."""
    key = fields.get("parentKey")
    if len(tree) == 1 and not isinstance(key, bytes):
        return None
    nodes = tree
    if isinstance(key, bytes):
        above = FlowNode(
            key=key.decode(errors="replace"), parent=None, name="", error="", children=ChildCounts(1, 0, 0, 0)
        )
        nodes = [above, *(replace(one, parent=0 if one.parent is None else one.parent + 1) for one in tree)]
    shown = await flow_nodes(view, queue, nodes)
    here = tree[0].key.removeprefix(queue.keys.base)
    marked = [replace(one, is_here=one.job_id == here and one.queue == queue.id) for one in shown]
    return draw_flow(marked) if len(marked) > 1 else None


def _parent(value: PageValue) -> dict[str, str] | None:
    """Returns the queue and the id of the parent."""
    found = options_of(value)
    key, parent_id = found.get("queueKey"), found.get("id")
    if not isinstance(key, str) or parent_id is None:
        return None
    return {"queue": key.rpartition(":")[2], "id": str(parent_id)}


def _trace_link(view: View, value: PageValue) -> str:
    """Returns the link to the trace that the options carry (`tm`: a W3C traceparent, or JSON with one)."""
    if view.options.trace_url is None:
        return ""
    carrier = options_of(value).get("tm")
    if not isinstance(carrier, str):
        telemetry = options_of(value).get("telemetry")
        carrier = telemetry.get("metadata", "") if isinstance(telemetry, dict) else ""
    parts = carrier.replace('"', "-").split("-")
    trace_id = next(
        (one for one in parts if len(one) == 32 and all(c in "0123456789abcdef" for c in one)), ""
    )
    return view.options.trace_url.replace("{trace_id}", trace_id) if trace_id else ""


_RAW_FIELDS: Final = {
    "data": "data", "opts": "options", "returnvalue": "result", "progress": "progress", "failedReason": "error",
    "stacktrace": "error", "envelope": "data",
}  # fmt: skip


async def raw_value(view: View) -> bytes:
    """Returns one value of a job as it is stored, after `redact`."""
    queue, job_id, name = await view.queue(), view.query("id"), view.query("field")
    if name not in _RAW_FIELDS or not job_id:
        raise PageNotFound("there is no such value")
    if queue.is_bullmq:
        (raw,) = await queue.source.run(read.get_fields(queue.keys, job_id, [name]))
    else:
        letter = await _dead_letter(queue, job_id)
        raw = None if letter is None else letter.text
    if raw is None:
        raise PageNotFound("there is no such value")
    if view.options.redact is None:
        return bytes(raw)
    return redacted_text(view, queue, _RAW_FIELDS[name], raw).encode(errors="replace")


async def _dead_letter(queue: ShownQueue, entry_id: str) -> envelopes.RawDeadLetter | None:
    parts = entry_id.split("-")
    if len(parts) != 2 or not all(one.isdecimal() and len(one) <= 20 for one in parts):
        return None
    return await queue.source.run(envelopes.dead_letter(queue.keys, entry_id))


# --- jobs that Redis does not have --------------------------------------------------------------------------------


async def _removed(view: View, queue: ShownQueue, job_id: str) -> Page:
    known = await view.history.job(queue.label, job_id)
    if known is None:
        where = f", and not in the lake {view.history.place}" if view.history.place else ""
        raise PageNotFound(f"there is no job {job_id!r} in queue {queue.id!r}{where}")
    attempts = await view.history.attempts(queue.label, job_id)
    snapshots = await view.history.rows(
        "select data, opts, returnvalue, failed_reason, stacktrace from bronze.jobs "
        "where queue = $queue and job_id = $job order by snapshot_at desc limit 1",
        {"queue": queue.label, "job": job_id},
    )
    return Page(
        template="removed_job",
        title=f"{known.get('name') or ''} {job_id}",
        place="overview",
        values={
            "queue": queue,
            "job_id": job_id,
            "known": known,
            "attempts": attempts,
            "snapshot": {
                name: pretty_json(redacted_text(view, queue, name, str(value).encode(errors="replace")))[0]
                for name, value in (snapshots[0] if snapshots else {}).items()
                if value
            },
            "now_ms": time.time() * 1000,
        },
        is_live=False,
    )


async def _envelope(view: View, queue: ShownQueue, job_id: str) -> Page:
    """A dead letter of a list or stream queue, by its entry id."""
    raw = await _dead_letter(queue, job_id)
    if raw is None:
        raise PageNotFound(f"queue {queue.id!r} has no dead letter {job_id!r}")
    is_cut = len(raw.text) > FOLDED_BYTES
    row = envelope_row(
        view,
        queue,
        "failed",
        envelope_pages.EnvelopeRow(
            position=job_id, score=None, length=len(raw.text), text=raw.text, tail=b""
        ),
    )
    text, is_json = ("", False) if is_cut else pretty_json(redacted_text(view, queue, "data", raw.text))
    return Page(
        template="dead_letter",
        title=f"{row.name} {row.job_id}",
        place="overview",
        values={
            "queue": queue,
            "row": row,
            "entry_id": job_id,
            "value": ShownValue(
                name="envelope",
                title="envelope",
                text=text,
                is_json=is_json,
                size=len(raw.text),
                is_cut=is_cut,
            ),
            "now_ms": time.time() * 1000,
        },
        is_live=False,
    )
