"""Operations: acts on many jobs, running and past."""

from __future__ import annotations

import time

from toril.dashboard._operations import Operation, get_operation, list_operations
from toril.dashboard._view import Page, PageNotFound, View
from toril.errors import TorilError


async def operations(view: View) -> Page:
    found: list[Operation] = []
    errors: dict[str, str] = {}
    for source in view.sources.all:
        try:
            found += await list_operations(source)
        except TorilError as error:
            errors[source.name] = str(error)
    shown = [one for one in found if view.access.sees(one.queue)]
    shown.sort(key=lambda one: -one.started_ms)
    return Page(
        template="operations",
        title="Operations",
        place="operations",
        values={"operations": shown, "errors": errors, "now_ms": time.time() * 1000},
    )


async def operation(view: View) -> Page:
    operation_id = str(view.request.path_params["operation"])
    for source in view.sources.all:
        found = await get_operation(source, operation_id)
        if found is not None and view.access.sees(found.queue):
            return Page(
                template="operation",
                title=f"{found.act.name} {found.queue}",
                place="operations",
                values={"one": found, "now_ms": time.time() * 1000},
            )
    raise PageNotFound("there is no such operation; they are kept for a week")
