"""Litestar: a plugin with the lifespan of an app, its queues as dependencies, and the progress of jobs.

toril = TorilPlugin(app, queues={"emails": "emails"})

@get("/jobs/{job_id:str}")
async def progress(job_id: str) -> Stream:
    return await toril.job_events("emails", job_id)

web = Litestar([progress], plugins=[toril])
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from toril.app import App
from toril.app.app import Queues
from toril.errors import JobNotFound
from toril.integrations.job_updates import KEEP_ALIVE, SSE_HEADERS, SSE_MEDIA_TYPE, JobUpdates
from toril.protocol.extras import needed

with needed("litestar"):
    from litestar import Litestar
    from litestar.config.app import AppConfig
    from litestar.di import Provide
    from litestar.exceptions import NotFoundException
    from litestar.plugins import InitPluginProtocol
    from litestar.response import Stream


class TorilPlugin(InitPluginProtocol):
    """Opens and closes the queues of an app with the web application.

    `queues` are dependencies: the name of the parameter and the queue. `worker` runs a worker in this process.
    """

    def __init__(
        self, app: App, *, queues: Mapping[str, str] | None = None, worker: bool | Queues = False
    ) -> None:
        self.app = app
        self._queues = dict(queues or {})
        self._worker = worker
        self._updates = JobUpdates(app)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Called by Litestar."""
        app_config.lifespan.append(self._lifespan)
        for parameter, queue in self._queues.items():
            app_config.dependencies[parameter] = Provide(self._provider(queue))
        return app_config

    def _provider(self, name: str) -> Callable[[], Awaitable[object]]:
        async def queue() -> Any:
            return self.app.get_queue(name)

        return queue

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Litestar) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.app)
            if self._worker is not False:
                queues = None if self._worker is True else self._worker
                await stack.enter_async_context(self.app.worker(queues))
            yield

    async def job_events(self, queue: str, job_id: str, *, keep_alive: float = KEEP_ALIVE) -> Stream:
        """The progress and the end of a job as server-sent events; 404 if there is no such job."""
        try:
            await self._updates.find(queue, job_id)
        except JobNotFound:
            raise NotFoundException("there is no such job") from None
        body = self._updates.stream(queue, job_id, keep_alive=keep_alive)
        return Stream(body, media_type=SSE_MEDIA_TYPE, headers=SSE_HEADERS)
