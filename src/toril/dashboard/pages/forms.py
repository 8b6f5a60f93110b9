"""Forms: add or duplicate a job, set limits, edit a scheduler."""

from __future__ import annotations

from toril.commands import pages, read
from toril.commands import schedulers as commands
from toril.dashboard._rows import redacted_text, text_of
from toril.dashboard._texts import FOLDED_BYTES, pretty_json
from toril.dashboard._view import Page, PageNotFound, View


async def new_job(view: View) -> Page:
    """The form of a new job; `like` is the id of a job to begin with."""
    queue = await view.queue()
    values = {"queue": queue, "name": "", "data": "{}", "like": view.query("like")}
    if view.query("like") and queue.is_bullmq:
        fields = await queue.source.run(
            pages.job_fields(
                queue.keys, view.query("like"), ("name", "data"), longest=FOLDED_BYTES, max_bytes=FOLDED_BYTES
            )
        )
        data = fields["data"]
        if isinstance(data, bytes):
            values["data"] = pretty_json(redacted_text(view, queue, "data", data))[0]
        values["name"] = text_of(fields["name"], "name")
    return Page(template="new_job", title="Add a job", place="overview", values=values, is_live=False)


async def settings(view: View) -> Page:
    """The limits of a queue, and acts on all of it."""
    queue = await view.queue()
    meta: dict[str, str] = await queue.source.run(read.get_meta(queue.keys)) if queue.is_bullmq else {}
    return Page(
        template="settings",
        title=f"Settings of {queue.id}",
        place="overview",
        values={"queue": queue, "meta": meta},
        is_live=False,
    )


async def scheduler(view: View) -> Page:
    """The form of one scheduler."""
    queue, scheduler_id = await view.queue(), view.query("id")
    fields = (
        await queue.source.run(commands.get_scheduler(queue.keys, scheduler_id)) if queue.is_bullmq else {}
    )
    if not fields:
        raise PageNotFound(f"there is no scheduler {scheduler_id!r}")
    every = fields.get("every", "")
    data = fields.get("data", "{}").encode(errors="replace")
    return Page(
        template="scheduler",
        title=f"Scheduler {scheduler_id}",
        place="schedulers",
        values={
            "queue": queue,
            "scheduler_id": scheduler_id,
            "fields": fields,
            "every": f"{int(every) / 1000:g}" if every.isdecimal() else "",
            "data": pretty_json(redacted_text(view, queue, "data", data))[0],
        },
        is_live=False,
    )
