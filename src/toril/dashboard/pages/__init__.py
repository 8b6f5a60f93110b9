"""The pages, by their paths. A page is a function of a `View`."""

from __future__ import annotations

from typing import Final

from toril.dashboard._view import PageFunction
from toril.dashboard.pages.audit import audit
from toril.dashboard.pages.failures import failures
from toril.dashboard.pages.flows import flows
from toril.dashboard.pages.forms import new_job, scheduler, settings
from toril.dashboard.pages.groups import groups
from toril.dashboard.pages.health import health
from toril.dashboard.pages.history import history
from toril.dashboard.pages.job import job
from toril.dashboard.pages.operations import operation, operations
from toril.dashboard.pages.overview import overview
from toril.dashboard.pages.queue import queue
from toril.dashboard.pages.schedulers import schedulers
from toril.dashboard.pages.workers import workers

PAGES: Final[dict[str, PageFunction]] = {
    "/": overview,
    "/queues/{queue}": queue,
    "/queues/{queue}/job": job,
    "/queues/{queue}/groups": groups,
    "/queues/{queue}/new": new_job,
    "/queues/{queue}/settings": settings,
    "/queues/{queue}/scheduler": scheduler,
    "/failures": failures,
    "/schedulers": schedulers,
    "/workers": workers,
    "/flows": flows,
    "/history": history,
    "/health": health,
    "/operations": operations,
    "/operations/{operation}": operation,
    "/audit": audit,
}
