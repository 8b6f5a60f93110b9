"""Runs what is in the queues of an app until nothing is left."""

from __future__ import annotations

from toril.app import App, AppWorker


async def drain(app: App, *queues: str, concurrency: int = 10) -> AppWorker:
    """Starts a worker, waits until its queues are idle, and stops it; returns it for its counters.

    Jobs that the tasks add meanwhile run, too, also in other queues of the worker. Delayed jobs do not (`TestClock`).
    """
    async with app.worker(list(queues) or None, concurrency=concurrency) as worker:
        await worker.run_until_idle()
    return worker
