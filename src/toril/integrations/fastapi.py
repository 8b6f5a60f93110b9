"""FastAPI: what `toril.integrations.starlette` has, and queues as dependencies.

web = FastAPI(lifespan=toril_lifespan(app))
Emails = Annotated[Queue, injected_queue("emails")]

@web.post("/pause")
async def pause(emails: Emails) -> None:
    await emails.pause()
"""

from __future__ import annotations

from typing import Any

from toril.app import App
from toril.integrations.starlette import job_events, toril_lifespan, web_state
from toril.protocol.extras import needed

with needed("fastapi"):
    from fastapi import Depends
    from fastapi.requests import HTTPConnection

__all__ = ["injected_app", "injected_queue", "job_events", "toril_lifespan"]


def injected_queue(name: str) -> Any:
    """A dependency: the queue of the app in the event loop of the web application."""

    async def queue(connection: HTTPConnection) -> Any:
        return web_state(connection).app.get_queue(name)

    return Depends(queue)


def injected_app() -> Any:
    """A dependency: the app of this web application."""

    async def app(connection: HTTPConnection) -> App:
        return web_state(connection).app

    return Depends(app)
