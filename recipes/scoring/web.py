"""A web application that adds a job for each request and waits for its score."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException

from toril import Queue
from toril.errors import JobFailed


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with Queue[Any]("inference") as queue:
        web.state.queue = queue
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/score")
async def score(features: list[float]) -> dict[str, float]:
    job = await web.state.queue.add("score", {"features": features}, attempts=3)
    try:
        return {"score": await job.wait_until_finished(timeout=60)}
    except JobFailed as error:
        raise HTTPException(422, str(error)) from error
