"""Changes of many jobs: selected rows, all that match, and groups of failures; each is an operation."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import FormData
from starlette.responses import Response

from toril.dashboard._audit import audited
from toril.dashboard._bulk import BulkAct, Selection
from toril.dashboard._operations import get_operation
from toril.dashboard._sources import ShownQueue
from toril.dashboard._texts import name_of_url_part
from toril.dashboard._view import PageNotFound, View
from toril.dashboard._writes import (
    BULK_ACTS,
    EXAMINE,
    allowed,
    back,
    coded,
    confirmation,
    real,
    text,
)
from toril.dashboard.pages.queue import SINCE
from toril.errors import InvalidOption

# Jobs per second for which a preview says how long an act takes.
PREVIEW_RATES: Final = (10, 100, 1000)


async def selection_act(view: View, form: FormData) -> Response:
    """Selected rows, or all jobs of a state that match the filter of the page."""
    queue = await view.queue()
    name, _ = allowed(view, BULK_ACTS, form)
    ids = tuple(name_of_url_part(one) for one in form.getlist("id") if isinstance(one, str))
    whole = text(form, "all") == "1"
    if not ids and not whole:
        raise InvalidOption("id", "nothing is selected", "select rows, or choose all that match")
    picture = await queue.source.overview()
    since = SINCE.get(text(form, "since"), 0)
    selection = Selection(
        state=text(form, "state", "failed"),
        ids=() if whole else ids,
        text=text(form, "q"),
        name=text(form, "name"),
        since_ms=round(picture.now_ms - since * 3_600_000) if since else 0,
    )
    count = (queue.figures.states.get(selection.state, 0) if queue.figures else 0) if whole else len(ids)
    words = f"up to {count:,} jobs that are {selection.state}" if whole else f"{count:,} selected jobs"
    return await _bulk(view, queue, name, selection, form, words, count)


async def group_act(view: View, form: FormData) -> Response:
    """All failures of one group, or the examination of all failures of a queue."""
    name, _ = allowed(view, BULK_ACTS | EXAMINE, form)
    queue = await view.sources.find(coded(form, "queue"), view.access)
    if queue is None:
        raise PageNotFound("there is no such queue")
    if name == "examine":
        return await _examine(view, queue)
    group = text(form, "group")
    known = (await view.parts.failures.groups(view, [queue]))[queue.id].groups.get(group)
    samples = [f"{one.name} {one.id}: {one.error}" for one in known.samples] if known is not None else []
    count, pattern = (
        await _examined(queue, form, group) or (known and (known.count, known.pattern)) or (0, "")
    )
    if not count:
        raise PageNotFound("this group has no failure any more")
    words = f"{count:,} failures of {queue.id}: {pattern}"
    return await _bulk(view, queue, name, Selection(state="failed", group=group), form, words, count, samples)


async def _examined(queue: ShownQueue, form: FormData, group: str) -> tuple[int, str] | None:
    """Returns the size and pattern of a group that an operation found, which may have examined more than is known."""
    operation_id = text(form, "operation")
    examined = await get_operation(queue.source, operation_id) if operation_id else None
    if examined is None or examined.queue != queue.id:
        return None
    return next(
        ((one["count"], one["pattern"]) for one in examined.groups if one["fingerprint"] == group), None
    )


async def _examine(view: View, queue: ShownQueue) -> Response:
    reading = await queue.source.read(queue)
    count = reading.queue.figures.dead if reading.queue.figures is not None else 0
    async with audited(queue.source, view.access, "examine", queue.id, f"{count:,} failures"):
        operation = await view.parts.operations.begin(
            view, queue, BulkAct(name="examine"), Selection(state="failed"), count
        )
    return back(view.link("operations", operation))


async def _bulk(
    view: View,
    queue: ShownQueue,
    name: str,
    selection: Selection,
    form: FormData,
    words: str,
    count: int,
    samples: list[str] | None = None,
) -> Response:
    rate = real(form, "rate")
    if not text(form, "confirmed"):
        lines = [words, *(samples or [])]
        durations = [] if not count else [(each, count / each) for each in PREVIEW_RATES]
        title = f"{'Replay' if name == 'retry' and not queue.is_bullmq else name.capitalize()}?"
        return confirmation(view, title, lines, form, rate=True, durations=durations)
    act = BulkAct(name=name, rate=rate)
    async with audited(queue.source, view.access, name, queue.id, words):
        operation = await view.parts.operations.begin(view, queue, act, selection, count)
    return back(view.link("operations", operation))
