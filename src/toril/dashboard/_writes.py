"""Changes: the forms of pages.

Guarantee: a change needs `allow_writes`, the role of the act, a queue that is granted, and the token of a page. A
refused change is not in the audit; any other is recorded there first. An act that cannot be undone asks once more, on a
page of its own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from toril.commands import pages
from toril.commands.operations import set_cancel
from toril.dashboard._audit import audited
from toril.dashboard._bulk import BulkAct, Selection
from toril.dashboard._operations import get_operation
from toril.dashboard._render import render_page
from toril.dashboard._security import has_form_token
from toril.dashboard._sources import ShownQueue
from toril.dashboard._texts import name_of_url_part
from toril.dashboard._view import Page, PageNotFound, View
from toril.dashboard.access import Role
from toril.errors import InvalidOption, TorilError
from toril.producer import Queue
from toril.protocol.worker_options import RateLimit

# Changes are small forms; a job that is added may be larger.
MOST_FORM_BYTES: Final = 4 * 1024 * 1024
MOST_SELECTED: Final = 10_000


class Refused(Exception):
    """The change is not allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What a form may ask for."""

    role: Role
    asks: bool = False  # once more, because it cannot be undone


# Acts on one job, on selected jobs, and on a queue.
JOB_ACTS: Final = {
    "retry": Act(role=Role.OPERATOR),
    "promote": Act(role=Role.OPERATOR),
    "cancel": Act(role=Role.OPERATOR),
    "remove": Act(role=Role.OPERATOR, asks=True),
    "priority": Act(role=Role.OPERATOR),
    "delay": Act(role=Role.OPERATOR),
}
BULK_ACTS: Final = {
    "retry": Act(role=Role.OPERATOR, asks=True),
    "promote": Act(role=Role.OPERATOR, asks=True),
    "remove": Act(role=Role.OPERATOR, asks=True),
}
EXAMINE: Final = {"examine": Act(role=Role.OPERATOR)}
QUEUE_ACTS: Final = {
    "pause": Act(role=Role.OPERATOR),
    "resume": Act(role=Role.OPERATOR),
    "add": Act(role=Role.OPERATOR),
    "concurrency": Act(role=Role.ADMIN),
    "rate-limit": Act(role=Role.ADMIN),
    "clean": Act(role=Role.ADMIN, asks=True),
    "drain": Act(role=Role.ADMIN, asks=True),
    "obliterate": Act(role=Role.ADMIN, asks=True),
}
SCHEDULER_ACTS: Final = {
    "run": Act(role=Role.OPERATOR),
    "edit": Act(role=Role.ADMIN),
    "remove": Act(role=Role.ADMIN, asks=True),
}

Write = Callable[[View, FormData], Awaitable[Response]]


async def handle(view: View, write: Write) -> Response:
    """Checks a form and makes its change; an error is a page."""
    try:
        form = await read_form(view.request)
        _check_allowed(view, form)
        try:
            return await write(view, form)
        finally:
            view.sources.outdate()
    except Refused as error:
        return _problem(view, 403, "Refused", str(error))
    except PageNotFound as error:
        return _problem(view, 404, "Not found", str(error))
    except InvalidOption as error:
        return _problem(view, 400, "This cannot be done", str(error))
    except TorilError as error:
        return _problem(view, 409, "This could not be done", str(error))


def _check_allowed(view: View, form: FormData) -> None:
    if not has_form_token(view.request, form.get("token")):
        raise Refused("the form has no valid token; load the page again")
    if not view.options.allow_writes:
        raise Refused("this dashboard is read only; see --allow-writes")


def _problem(view: View, status: int, title: str, problem: str) -> Response:
    values = {"problem": problem, "status": status}
    return render_page(
        view, Page(template="problem", title=title, values=values, is_live=False, status=status)
    )


async def read_form(request: Request) -> FormData:
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MOST_FORM_BYTES:
        raise InvalidOption("form", "is too large", f"send at most {MOST_FORM_BYTES:,} bytes")
    return await request.form(max_files=0, max_fields=MOST_SELECTED + 50, max_part_size=MOST_FORM_BYTES)


def allowed(view: View, acts: Mapping[str, Act], form: FormData) -> tuple[str, Act]:
    """Returns the act that the form names; raises if there is none or the role does not include it."""
    name = text(form, "act")
    act = acts.get(name)
    if act is None:
        raise InvalidOption("act", f"{name[:50]!r} is not an act", f"choose one of {', '.join(acts)}")
    if not view.access.may(act.role):
        raise Refused(f"{name} needs the role {act.role}; yours is {view.access.role}")
    return name, act


def text(form: FormData, name: str, default: str = "") -> str:
    value = form.get(name, default)
    return value if isinstance(value, str) else default


def coded(form: FormData, name: str) -> str:
    """Returns a name that the page wrote with `url_part`, so that a browser leaves every character as it is."""
    return name_of_url_part(text(form, name))


def real(form: FormData, name: str) -> float | None:
    given = text(form, name).strip()
    if not given:
        return None
    try:
        return float(given)
    except ValueError:
        raise InvalidOption(name, f"{given[:50]!r} is not a number", "write digits") from None


def back(to: str) -> Response:
    return RedirectResponse(to, 303)


def confirmation(
    view: View,
    title: str,
    lines: list[str],
    form: FormData,
    *,
    typed: str = "",
    rate: bool = False,
    durations: Sequence[tuple[int, float]] = (),
) -> Response:
    """Returns the page that asks once more, with the same form."""
    fields = [
        (name, value)
        for name, value in form.multi_items()
        if name not in ("token", "confirmed") and isinstance(value, str)
    ]
    values = {
        "lines": lines,
        "fields": fields,
        "action": view.request.scope["path"],
        "typed": typed,
        "rate": rate,
        "durations": durations,
        "danger": text(form, "act") not in ("retry", "promote"),
        "origin": _origin(view),
    }
    return render_page(view, Page(template="confirm", title=title, values=values, is_live=False))


def _origin(view: View) -> str:
    """Returns the link to the page whose form asks."""
    queue = view.request.path_params.get("queue")
    return view.link("failures") if queue is None else view.link("queues", name_of_url_part(queue))


# --- one job ---------------------------------------------------------------------------------------------------


async def job_act(view: View, form: FormData) -> Response:
    queue, job_id = await view.queue(), coded(form, "id")
    name, act = allowed(view, JOB_ACTS, form)
    if not queue.is_bullmq or not job_id:
        raise PageNotFound("there is no such job")
    if act.asks and not text(form, "confirmed"):
        return confirmation(view, f"Remove job {job_id}?", ["Its children are removed with it."], form)
    async with (
        audited(queue.source, view.access, name, queue.id, job_id),
        queue.source.open(queue.found) as opened,
    ):
        if isinstance(opened, Queue):
            await _on_job(opened, name, job_id, form)
    # A cancelled job that did not run is removed: it has no page any more.
    if not await queue.source.run(pages.job_field_names(queue.keys, job_id)):
        return back(view.link("queues", queue.id))
    return back(view.link("queues", queue.id, "job", id=job_id))


async def _on_job(queue: Queue, act: str, job_id: str, form: FormData) -> None:
    if act == "cancel":
        await queue.cancel(job_id, "cancelled in the dashboard")
        return
    if act == "remove":
        await queue.remove(job_id)
        return
    job = await queue.get_job(job_id)
    if job is None:
        raise PageNotFound(f"there is no job {job_id!r}")
    match act:
        case "retry":
            state = await job.get_state()
            await job.retry("completed" if state == "completed" else "failed")
        case "promote":
            await job.promote()
        case "priority":
            await job.change_priority(int(real(form, "priority") or 0))
        case "delay":
            await job.change_delay(real(form, "delay") or 0)


# --- a queue ---------------------------------------------------------------------------------------------------


async def queue_act(view: View, form: FormData) -> Response:
    queue = await view.queue()
    name, act = allowed(view, QUEUE_ACTS, form)
    to = view.link("queues", queue.id)
    if act.asks:
        return await _ask_and_run(view, queue, name, form)
    if not queue.is_bullmq and name != "add":
        raise InvalidOption("act", f"{name} is for BullMQ queues", "choose another queue")
    async with (
        audited(queue.source, view.access, name, queue.id, _detail(form)),
        queue.source.open(queue.found) as opened,
    ):
        if isinstance(opened, Queue):
            await _on_queue(opened, name, form)
        else:
            await opened.add(text(form, "name"), _json(form, "data"))
    return back(to)


def _detail(form: FormData) -> str:
    words = {name: value for name, value in form.items() if name not in ("token", "act", "data") and value}
    return " ".join(f"{name}={value}" for name, value in words.items())


async def _on_queue(queue: Queue, act: str, form: FormData) -> None:
    match act:
        case "pause":
            await queue.pause()
        case "resume":
            await queue.resume()
        case "add":
            options: dict[str, Any] = {
                name: value
                for name in ("delay", "priority", "attempts")
                if (value := real(form, name)) is not None
            }
            for name in ("priority", "attempts"):
                if name in options:
                    options[name] = int(options[name])
            await queue.add(text(form, "name"), _json(form, "data"), **options)
        case "concurrency":
            limit = real(form, "limit")
            await queue.set_global_concurrency(None if not limit else int(limit))
        case "rate-limit":
            count, period = real(form, "count"), real(form, "period")
            await queue.set_global_rate_limit(RateLimit(int(count), period or 1.0) if count else None)


def _json(form: FormData, name: str) -> object:
    try:
        return json.loads(text(form, name) or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidOption(name, f"is not JSON: {error}", "check quotes and commas") from None


async def _ask_and_run(view: View, queue: ShownQueue, name: str, form: FormData) -> Response:
    typed = queue.label if name == "obliterate" else ""
    if not text(form, "confirmed"):
        lines = {
            "clean": f"Removes jobs of {queue.id} that are {text(form, 'state') or 'completed'}.",
            "drain": f"Removes all waiting jobs of {queue.id}; active and finished ones stay.",
            "obliterate": f"Deletes the queue {queue.id} and all its jobs, active ones too.",
        }
        return confirmation(view, f"{name.capitalize()} {queue.id}?", [lines[name]], form, typed=typed)
    if typed and text(form, "typed") != typed:
        raise InvalidOption("typed", "is not the name of the queue", f"write {typed!r}")
    act = BulkAct(name=name, grace=real(form, "grace") or 0, delayed=text(form, "delayed") == "1")
    selection = Selection(state=text(form, "state") or "completed")
    async with audited(queue.source, view.access, name, queue.id, _detail(form)):
        operation = await view.parts.operations.begin(view, queue, act, selection, 0)
    return back(view.link("operations", operation))


# --- schedulers and operations ---------------------------------------------------------------------------------


async def scheduler_act(view: View, form: FormData) -> Response:
    queue, scheduler_id = await view.queue(), coded(form, "id")
    name, act = allowed(view, SCHEDULER_ACTS, form)
    if act.asks and not text(form, "confirmed"):
        return confirmation(
            view, f"Remove scheduler {scheduler_id}?", ["Its next run is removed, too."], form
        )
    if not queue.is_bullmq:
        raise PageNotFound("there is no such scheduler")
    async with (
        audited(queue.source, view.access, f"scheduler {name}", queue.id, scheduler_id),
        queue.source.open(queue.found) as opened,
    ):
        if isinstance(opened, Queue):
            await _on_scheduler(opened, name, scheduler_id, form)
    return back(view.link("schedulers"))


async def _on_scheduler(queue: Queue, act: str, scheduler_id: str, form: FormData) -> None:
    found = await queue.schedulers.get(scheduler_id)
    if found is None:
        raise PageNotFound(f"there is no scheduler {scheduler_id!r}")
    match act:
        case "run":
            await queue.add(found.name, found.data)
        case "remove":
            await queue.schedulers.remove(scheduler_id)
        case "edit":
            cron = text(form, "cron")
            when: dict[str, Any] = (
                {"cron": cron, "tz": text(form, "tz") or None} if cron else {"every": real(form, "every")}
            )
            await queue.schedulers.upsert(scheduler_id, **when, name=found.name, data=_json(form, "data"))


async def operation_act(view: View, form: FormData) -> Response:
    operation_id, name = str(view.request.path_params["operation"]), text(form, "act")
    for source in view.sources.all:
        operation = await get_operation(source, operation_id)
        if operation is None:
            continue
        queue = await view.sources.find(operation.queue, view.access)
        if queue is None:
            raise PageNotFound("there is no such operation")
        acts = BULK_ACTS | EXAMINE | QUEUE_ACTS
        if not view.access.may(acts[operation.act.name].role):
            raise Refused(f"this operation needs the role {acts[operation.act.name].role}")
        async with audited(source, view.access, f"operation {name}", queue.id, operation_id):
            if name == "cancel":
                await source.run(set_cancel(source.prefix, operation_id, True))
            elif name == "continue" and operation.state in ("interrupted", "cancelled", "failed"):
                await view.parts.operations.resume(view, queue, operation)
            else:
                raise InvalidOption("act", f"{name[:50]!r} cannot be done now", "load the page again")
        return back(view.link("operations", operation_id))
    raise PageNotFound("there is no such operation")
