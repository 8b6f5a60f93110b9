"""`toril logs` and `toril events`: what jobs say, and what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import typer

from toril.cli._options import AsJson, BullmqArgument, JobArgument, Prefix, RedisUrl
from toril.cli._output import emit, emit_line, harmless, print_server, say, shortened, warn
from toril.cli._target import QueueName, Target
from toril.commands import read
from toril.errors import InvalidOption, JobNotFound
from toril.events import QueueEvents
from toril.protocol.event import Event
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport

_END = ("completed", "failed", "removed")
# Without an event for lines of a log, we look; faster than a person reads.
LOOK_EVERY = 0.25


def add_to(app: typer.Typer) -> None:
    app.command("logs")(logs)
    app.command("events")(events)


def logs(
    queue: BullmqArgument,
    job: JobArgument,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, help="Only the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Print the log of a job."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_logs(target, where, job, tail, follow=follow, as_json=as_json))


async def _logs(
    target: Target, where: QueueName, job_id: str, tail: int | None, *, follow: bool, as_json: bool
) -> None:
    async with target.bullmq(where, "logs", look=True) as queue:
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
            await asyncio.sleep(LOOK_EVERY)


def _print_lines(lines: list[str], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            emit_line(line)
        else:
            say(line)


def events(
    queue: BullmqArgument,
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin with so many past events.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="Only events of this type; may be given again.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only events of this job.")] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Print what happened in a queue, and with --follow what happens."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    if where.kind != "bullmq":
        raise InvalidOption("queue", f"{where.kind} queues have no events", "give a BullMQ queue")
    show = _Printer(set(kind or ()), job, as_json=as_json)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_events(target, where, last, show, follow=follow))


class _Printer:
    """Prints those events that somebody wants, one in a line."""

    def __init__(self, kinds: set[str], job: str | None, *, as_json: bool) -> None:
        self._kinds = kinds
        self._job = job
        self._as_json = as_json

    def __call__(self, event: Any) -> None:
        if not isinstance(event, Event):
            warn(f"events are missing: {event}")
            return
        if (self._kinds and event.type not in self._kinds) or self._job not in (None, event.job_id):
            return
        if self._as_json:
            emit_line(event.as_dict())
        else:
            rest = " ".join(f"{name}={shortened(value, 80)}" for name, value in event.fields.items())
            time = event.time.astimezone().strftime("%H:%M:%S.%f")[:-3]
            say(f"{time}  {event.type:<17} {harmless(event.job_id or '')}  {rest}".rstrip())


async def _events(target: Target, where: QueueName, last: int, show: _Printer, *, follow: bool) -> None:
    prefix = target.prefix_of("bullmq")
    async with AsyncTransport(target.redis) as transport:
        keys = QueueKeys(where.name, prefix).resolve(cluster=transport.is_cluster)
        past = await transport.run(read.last_events(keys, last)) if last else []
        newest = past[-1][0] if past else await transport.run(read.last_event_id(keys))
    for entry_id, fields in past:
        show(Event.from_entry(entry_id, fields))
    if newest == "0-0":
        warn(f"{where} has no events{' yet' if follow else ''}")
    if follow:
        print_server()
        async with QueueEvents(where.name, redis=target.redis, prefix=prefix, last_id=newest) as happening:
            async for event in happening:
                show(event)
