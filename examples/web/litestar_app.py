"""Litestar: the same with its plugin. Run: uvicorn examples.web.litestar_app:web"""

from __future__ import annotations

from typing import Any

from litestar import Litestar, get, post
from litestar.response import Stream

from examples.web.thumbnails import app, fail, make_thumbnails
from toril import Queue
from toril.integrations.litestar import TorilPlugin

toril = TorilPlugin(app, queues={"thumbnails": "thumbnails"}, worker=True)


@post("/thumbnails", status_code=200)
async def start(name: str, sizes: int = 3) -> dict[str, str]:
    job = await make_thumbnails.enqueue(name, sizes=sizes)
    return {"job": job.id}


@post("/failures", status_code=200)
async def start_failure(reason: str) -> dict[str, str]:
    return {"job": (await fail.enqueue(reason)).id}


@get("/jobs/{job_id:str}/events")
async def follow(job_id: str) -> Stream:
    return await toril.job_events("thumbnails", job_id)


@get("/counts")
async def counts(thumbnails: Queue[Any]) -> dict[str, int]:
    found = await thumbnails.get_job_counts()
    return {"completed": found.completed, "failed": found.failed}


web = Litestar([start, start_failure, follow, counts], plugins=[toril])
