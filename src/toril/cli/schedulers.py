"""`toril schedulers`: jobs that are added by a cron pattern or at an interval."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, cast

import typer

from toril.cli._confirm import confirm
from toril.cli._json_input import parse_json
from toril.cli._option_groups import with_option_groups
from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl, Yes
from toril.cli._output import emit, format_seconds, format_time, print_line, show
from toril.cli._target import QueueName, Target
from toril.jobs import Job
from toril.producer.schedulers import Scheduler
from toril.protocol.cron import CronGeneration

SchedulerArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The scheduler's id.", show_default=False)
]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Schedulers, which add jobs by a cron pattern or at an interval: list, set, remove.",
        no_args_is_help=True,
    )
    group.command("list")(list_schedulers)
    group.command("set")(with_option_groups(set_scheduler))
    group.command("remove")(remove_scheduler)
    app.add_typer(group, name="schedulers")


def list_schedulers(
    queue: BullmqArgument, redis: RedisUrl = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """List the schedulers of a queue, by the time of their next run."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)

    async def run() -> list[Scheduler]:
        async with target.bullmq(where, "schedulers", read_only=True) as opened:
            return await opened.schedulers.list()

    found = asyncio.run(run())
    if as_json:
        emit([_facts(one) for one in found])
        return
    rows = [
        (one.id, one.name, _when(one), _time_zone(one), format_time(one.next_run), one.runs) for one in found
    ]
    columns = ["scheduler", "job", "when", "time zone", "next run (local)", "jobs added"]
    show(columns, rows, right=["jobs added"], empty="no schedulers")


def _when(one: Scheduler) -> str:
    return one.cron or f"every {format_seconds(one.every)}"


def _time_zone(one: Scheduler) -> str:
    """In which the pattern is read; without one it is that of the worker which adds the next job, as in Node."""
    return one.tz or ("of the worker" if one.cron else "")


def _facts(one: Scheduler) -> dict[str, object]:
    return {
        "id": one.id,
        "name": one.name,
        "cron": one.cron,
        "every": one.every,
        "tz": one.tz,
        "next_run": one.next_run,
        "limit": one.limit,
        "offset": one.offset,
        "runs": one.runs,
        "data": one.data,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """When a scheduler adds which job: a group of options (see `_option_groups`)."""

    cron: Annotated[str | None, typer.Option("--cron", help='Cron pattern, e.g. "0 3 * * *".')] = None
    every: Annotated[float | None, typer.Option("--every", help="Seconds between runs.")] = None
    tz: Annotated[str | None, typer.Option("--tz", help="Time zone of the pattern, e.g. Europe/Zurich.")] = (
        None
    )
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of runs.")] = None
    offset: Annotated[
        float | None, typer.Option("--offset", help="Seconds by which the times of --every are shifted.")
    ] = None
    cron_generation: Annotated[
        int, typer.Option("--cron-generation", min=5, max=6, help="Read --cron as BullMQ 5 or 6 does.")
    ] = 5
    name: Annotated[str | None, typer.Option("--name", help="Name of the jobs. Default: the id.")] = None
    data: Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="Data of the jobs.")] = "{}"


def set_scheduler(
    *,
    queue: BullmqArgument,
    scheduler: SchedulerArgument,
    schedule: ScheduleOptions,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Create a scheduler, or change the one with that id."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    payload = parse_json(schedule.data, "data")

    async def run() -> Job:
        generation = cast("CronGeneration", schedule.cron_generation)
        async with target.bullmq(where, "schedulers", cron_generation=generation) as opened:
            return await opened.schedulers.upsert(
                scheduler,
                cron=schedule.cron,
                every=schedule.every,
                tz=schedule.tz,
                limit=schedule.limit,
                offset=schedule.offset,
                name=schedule.name,
                data=payload,
            )

    job = asyncio.run(run())
    if as_json:
        emit({"id": scheduler, "next_job": job.id})
    else:
        print_line(f"{scheduler} is set; its next job is {job.id}")


def remove_scheduler(
    queue: BullmqArgument,
    scheduler: SchedulerArgument,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Remove a scheduler and its next job."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)
    confirm(f"Remove the scheduler {scheduler} of {queue}?", yes=yes)

    async def run() -> bool:
        async with target.bullmq(where, "schedulers") as opened:
            return await opened.schedulers.remove(scheduler)

    removed = asyncio.run(run())
    if as_json:
        emit({"id": scheduler, "removed": removed})
    else:
        print_line(f"{scheduler} is removed" if removed else f"there was no {scheduler}")
