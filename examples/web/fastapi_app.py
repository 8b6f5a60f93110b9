"""FastAPI: enqueue, follow a job in the browser, ask a queue. Run: uvicorn examples.web.fastapi_app:web"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Request, Response

from examples.web.thumbnails import app, fail, make_thumbnails
from toril import Queue
from toril.dashboard import Access, ServerOptions, create_app
from toril.integrations.fastapi import injected_queue, job_events, toril_lifespan

# Who may see it is up to the application: here everybody may look, and nobody may change anything.
dashboard = create_app(
    servers=[ServerOptions()], authorize=lambda request: Access(role="viewer", user="guest")
)
# The worker runs in this process; in production it is a process of its own: `toril worker examples.web.thumbnails:app`.
web = FastAPI(lifespan=toril_lifespan(app, worker=True, mounted=[dashboard]))
web.mount("/queues", dashboard)
Thumbnails = Annotated[Queue[Any], injected_queue("thumbnails")]


@web.post("/thumbnails")
async def start(name: str, sizes: int = 3) -> dict[str, str]:
    job = await make_thumbnails.enqueue(name, sizes=sizes)
    return {"job": job.id}


@web.post("/failures")
async def start_failure(reason: str) -> dict[str, str]:
    return {"job": (await fail.enqueue(reason)).id}


@web.get("/jobs/{job_id}/events")
async def follow(request: Request, job_id: str) -> Response:
    return await job_events(request, "thumbnails", job_id)


@web.get("/counts")
async def counts(queue: Thumbnails) -> dict[str, int]:
    found = await queue.get_job_counts()
    return {"completed": found.completed, "failed": found.failed}
