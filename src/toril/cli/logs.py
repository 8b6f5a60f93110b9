"""`toril logs`: the log lines of a job."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer

from toril.cli._options import AsJson, BullmqArgument, JobArgument, Prefix, RedisUrl
from toril.cli._output import emit, emit_line, print_line, print_server
from toril.cli._target import QueueName, Target
from toril.errors import JobNotFound

# There is no event for log lines, so they are polled.
POLL_SECONDS = 0.25


def add_to(app: typer.Typer) -> None:
    app.command("logs")(logs)


def logs(
    queue: BullmqArgument,
    job: JobArgument,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=1, help="Print only so many last lines.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Print the log lines of a job."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_logs(target, where, job, tail, follow=follow, as_json=as_json))


async def _logs(
    target: Target, where: QueueName, job_id: str, tail: int | None, *, follow: bool, as_json: bool
) -> None:
    async with target.bullmq(where, "logs", read_only=True) as queue:
        if await queue.get_job(job_id) is None:
            raise JobNotFound(job_id)
        found = await queue.get_job_logs(job_id)
        lines = found.lines if tail is None else found.lines[-tail:]
        if as_json and not follow:
            emit({"queue": str(where), "job": job_id, "count": found.count, "lines": lines})
            return
        seen = found.count
        _print_lines(lines, as_json=as_json)
        print_server()
        while follow:
            ended = (await queue.get_job_state(job_id)).is_final
            more = await queue.get_job_logs(job_id, seen)
            _print_lines(more.lines, as_json=as_json)
            seen += len(more.lines)
            if ended:
                return
            await asyncio.sleep(POLL_SECONDS)


def _print_lines(lines: list[str], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            emit_line(line)
        else:
            print_line(line)
