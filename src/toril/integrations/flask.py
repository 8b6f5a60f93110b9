"""Flask: calls of an app are enqueued from views, tasks run in the application context, jobs are followed.

toril = Toril(app)
toril.init_app(web)                          # web: Flask; adds the command `flask toril-worker`

@web.post("/send")
def post() -> dict[str, str]:
    return {"job": toril.enqueue(send.bind(request.form["to"])).id}
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import ParamSpec, TypeVar

from toril.app import App, TaskCall
from toril.errors import InvalidOption, JobNotFound
from toril.integrations.job_updates import KEEP_ALIVE, SSE_HEADERS, SSE_MEDIA_TYPE, JobUpdates
from toril.jobs import BlockingJob, Job
from toril.protocol.extras import needed
from toril.protocol.json_types import JsonObject
from toril.sync import App as BlockingApp

with needed("flask"):
    import click
    from flask import Flask, Response, abort
    from flask.cli import with_appcontext

P = ParamSpec("P")
R = TypeVar("R")


class Toril:
    """An app in a Flask application. Views in several threads share it; a forked process connects anew."""

    def __init__(self, app: App, web: Flask | None = None) -> None:
        self.app = app
        self._blocking = BlockingApp(app)
        self._updates = JobUpdates(app)
        self._web: Flask | None = None
        if web is not None:
            self.init_app(web)

    def init_app(self, web: Flask) -> None:
        """Registers the extension and the command `flask toril-worker`."""
        self._web = web
        web.extensions["toril"] = self
        web.cli.add_command(self._worker_command())

    # --- views ----------------------------------------------------------------------------------------------

    def enqueue(self, call: TaskCall[R]) -> BlockingJob[JsonObject, R]:
        """Adds the job of a call: `toril.enqueue(send.bind("a@b.c"))`."""
        return self._blocking.enqueue(call)

    def enqueue_many(self, calls: Iterable[TaskCall[R]]) -> list[BlockingJob[JsonObject, R]]:
        """Adds the jobs of calls, in order."""
        return self._blocking.enqueue_many(calls)

    def get_job(self, queue: str, job_id: str) -> BlockingJob | None:
        """The job, if it exists."""

        async def find() -> Job | None:
            return await self._updates.bullmq(queue).get_job(job_id)

        found = self._blocking.call(find)
        return None if found is None else self._blocking.blocking_job(found)

    def job_events(self, queue: str, job_id: str, *, keep_alive: float = KEEP_ALIVE) -> Response:
        """The progress and the end of a job as server-sent events; 404 if there is no such job.

        A client that follows a job holds a thread of the web server: use a server with many threads.
        """
        try:
            self._blocking.call(self._updates.find, queue, job_id)
        except JobNotFound:
            abort(404)
        body = self._stream_blocking(self._updates.stream(queue, job_id, keep_alive=keep_alive))
        return Response(body, mimetype=SSE_MEDIA_TYPE, headers=SSE_HEADERS)

    def _stream_blocking(self, stream: AsyncGenerator[bytes, None]) -> Iterator[bytes]:
        async def next_block() -> bytes | None:
            return await anext(stream, None)

        try:
            while (block := self._blocking.call(next_block)) is not None:
                yield block
        finally:
            self._blocking.call(stream.aclose)

    # --- tasks ----------------------------------------------------------------------------------------------

    def in_app_context(self, function: Callable[P, R]) -> Callable[P, R]:
        """Runs a plain function in the application context: write it between `@app.task` and the function."""

        @functools.wraps(function)
        def run(*args: P.args, **named: P.kwargs) -> R:
            if self._web is None:
                raise InvalidOption("web", "is not known yet", "call init_app(web) before the worker starts")
            with self._web.app_context():
                return function(*args, **named)

        return run

    def _worker_command(self) -> click.Command:
        @click.command("toril-worker", help="Runs the tasks of the app until a signal arrives.")
        @click.option("--queue", "queues", multiple=True, help="A queue to serve; default: all with tasks.")
        @click.option("--concurrency", type=int, default=None, help="Jobs at once, for each queue.")
        @with_appcontext
        def command(queues: tuple[str, ...], concurrency: int | None) -> None:
            asyncio.run(self._run_worker(queues, concurrency))

        return command

    async def _run_worker(self, queues: tuple[str, ...], concurrency: int | None) -> None:
        chosen = list(queues) or None
        if concurrency is None:
            await self.app.worker(chosen).run()
        else:
            await self.app.worker(chosen, concurrency=concurrency).run()

    def close(self) -> None:
        """Closes the connections, for tests: a process that ends needs no call."""
        self._blocking.close()
