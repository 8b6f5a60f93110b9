"""`toril events`: the event stream of a queue."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import typer

from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl
from toril.cli._output import emit_line, print_line, print_server, shorten, warn
from toril.cli._target import QueueName, Target
from toril.commands import read
from toril.errors import InvalidOption, MalformedValue
from toril.events import QueueEvents
from toril.protocol.event import Event
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport


def add_to(app: typer.Typer) -> None:
    app.command("events")(events)


def events(
    queue: BullmqArgument,
    last: Annotated[
        int, typer.Option("--last", "-n", min=0, help="Number of past events to print first.")
    ] = 20,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new events until Ctrl-C.")
    ] = False,
    kind: Annotated[
        list[str] | None, typer.Option("--type", help="Only events of this type; can be repeated.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", help="Only events of this job.")] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Print the events of a queue: past ones, and with --follow new ones."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    if where.kind != "bullmq":
        raise InvalidOption("queue", f"{where.kind} queues have no events", "give a BullMQ queue")
    print_event = _Printer(set(kind or ()), job, as_json=as_json)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_events(target, where, last, print_event, follow=follow))


class _Printer:
    """Prints the selected events, one per line."""

    def __init__(self, kinds: set[str], job: str | None, *, as_json: bool) -> None:
        self._kinds = kinds
        self._job = job
        self._as_json = as_json

    def __call__(self, event: object) -> None:
        if not isinstance(event, Event):
            warn(f"events are missing: {event}")
            return
        if (self._kinds and event.type not in self._kinds) or self._job not in (None, event.job_id):
            return
        if self._as_json:
            emit_line(event.as_dict())
        else:
            rest = " ".join(f"{name}={shorten(value, 80)}" for name, value in event.fields.items())
            print_line(f"{_time_of(event)}  {event.type:<17} {event.job_id or ''}  {rest}".rstrip())


def _time_of(event: Event) -> str:
    """Returns when it happened, or its id: another program may choose one without a time."""
    try:
        return event.time.astimezone().strftime("%H:%M:%S.%f")[:-3]
    except (MalformedValue, OverflowError, ValueError):
        return event.id


async def _events(
    target: Target, where: QueueName, last: int, print_event: _Printer, *, follow: bool
) -> None:
    prefix = target.prefix_of("bullmq")
    async with AsyncTransport(target.redis) as transport:
        keys = QueueKeys(where.name, prefix).resolve(cluster=transport.is_cluster)
        past = await transport.run(read.last_events(keys, last)) if last else []
        newest = past[-1][0] if past else await transport.run(read.last_event_id(keys))
    for entry_id, fields in past:
        print_event(Event.from_entry(entry_id, fields))
    if newest == "0-0":
        warn(f"{where} has no events{' yet' if follow else ''}")
    if follow:
        print_server()
        async with QueueEvents(
            where.name, redis=target.redis, prefix=prefix, last_id=newest
        ) as events_of_queue:
            async for event in events_of_queue:
                print_event(event)
