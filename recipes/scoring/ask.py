"""Asks the web application for scores, many at the same time, and compares them with the model."""

from __future__ import annotations

import asyncio
import sys

import httpx
import numpy as np
from model import FEATURES, weights

REQUESTS = 200


async def main(url: str) -> None:
    rows = np.random.default_rng(7).normal(size=(REQUESTS, FEATURES))
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        found = await asyncio.gather(*(client.post("/score", json=row.tolist()) for row in rows))
        bad = await client.post("/score", json=[1.0])
    scores = [one.raise_for_status().json()["score"] for one in found]
    if not np.allclose(scores, np.tanh(rows @ weights())):
        raise SystemExit("the scores are not those of the model")
    if bad.status_code != 422 or "give 8 features" not in bad.text:
        raise SystemExit(f"a bad request got {bad.status_code}: {bad.text}")
    print(f"{len(scores)} scores are right, a bad request got its reason")


asyncio.run(main(sys.argv[1]))
