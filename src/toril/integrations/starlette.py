"""Starlette: the lifespan of an app, its queues in endpoints, and the progress of jobs as server-sent events.

    web = Starlette(routes=[Route("/jobs/{job_id}", progress)], lifespan=toril_lifespan(app))

    async def progress(request: Request) -> Response:
        return await job_events(request, "emails", request.path_params["job_id"])

Guarantee: the queues of the app are open while the web application runs, and closed when it ends. A worker that runs
in the same process stops gracefully with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeAlias

from toril.app import App
from toril.app.app import Queues
from toril.errors import JobNotFound, TorilError
from toril.integrations.job_updates import KEEP_ALIVE, SSE_HEADERS, SSE_MEDIA_TYPE, JobUpdates
from toril.protocol.extras import needed

with needed("starlette"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import HTTPConnection
    from starlette.responses import StreamingResponse

StarletteLifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
_STATE = "toril"


class WebState:
    """What endpoints use of an app: it is in the state of the web application while that runs."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.updates = JobUpdates(app)


def toril_lifespan(
    app: App,
    *,
    worker: bool | Queues = False,
    lifespan: StarletteLifespan | None = None,
    mounted: Sequence[Starlette] = (),
) -> StarletteLifespan:
    """A lifespan for Starlette and FastAPI that opens and closes the queues of an app.

    `worker=True`, or some queues, also runs a worker in this process: for development and small applications.
    `lifespan` is the own one of the web application; it is entered inside. `mounted` are applications below it, such as
    the dashboard: Starlette enters their lifespans only if they are named here.
    """

    @contextlib.asynccontextmanager
    async def entered(web: Starlette) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            setattr(web.state, _STATE, WebState(app))
            await stack.enter_async_context(app)
            if worker is not False:
                await stack.enter_async_context(app.worker(None if worker is True else worker))
            for one in mounted:
                await stack.enter_async_context(one.router.lifespan_context(one))
            yield None if lifespan is None else await stack.enter_async_context(lifespan(web))

    return entered


def web_state(connection: HTTPConnection) -> WebState:
    """The app of this web application."""
    state = getattr(connection.app.state, _STATE, None)
    if not isinstance(state, WebState):
        raise TorilError("the web application has no toril app; give it lifespan=toril_lifespan(app)")
    return state


async def job_events(
    connection: HTTPConnection, queue: str, job_id: str, *, keep_alive: float = KEEP_ALIVE
) -> StreamingResponse:
    """The progress and the end of a job as server-sent events; 404 if there is no such job.

    The events are `progress`, and at last `completed`, `failed` or `removed`, with JSON as data. Check before whether
    the client may see this job: its result is sent.
    """
    updates = web_state(connection).updates
    try:
        await updates.find(queue, job_id)
    except JobNotFound:
        raise HTTPException(404, "there is no such job") from None
    body = updates.stream(queue, job_id, keep_alive=keep_alive)
    return StreamingResponse(body, media_type=SSE_MEDIA_TYPE, headers=SSE_HEADERS)
