"""`toril groups`: the counts, weights, limits and pauses of a queue's groups."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from toril.app.settings import parse_rate
from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl
from toril.cli._output import emit, print_result, show
from toril.cli._queue_operations import run_on_queue
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption
from toril.producer import Queue
from toril.protocol.group_limits import GroupCounts, GroupLimits

# How the limits of every group without limits of its own are shown; no group has an empty name.
_ALL_GROUPS = "(all others)"

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="The name of the group.")]


def add_to(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Groups of jobs: list them with counts, set weights and limits, pause, resume.",
        no_args_is_help=True,
    )
    group.command("list")(list_groups)
    group.command("set")(set_group)
    group.command("pause")(pause)
    group.command("resume")(resume)
    app.add_typer(group, name="groups")


@dataclass(frozen=True, slots=True)
class _Settings:
    """What is known of the groups of a queue."""

    counts: dict[str, GroupCounts]
    weights: dict[str, float]
    limits: dict[str | None, GroupLimits]
    paused: list[str]

    def names(self) -> list[str | None]:
        named = {*self.counts, *self.weights, *self.paused, *(one for one in self.limits if one is not None)}
        return [*([None] if None in self.limits else []), *sorted(named)]

    def facts(self, name: str | None) -> dict[str, object]:
        counts = self.counts.get(name or "", GroupCounts())
        limits = self.limits.get(name, GroupLimits())
        rate = limits.rate_limit
        return {
            "group": name,
            **asdict(counts),
            "weight": self.weights.get(name or "", 1.0),
            "paused": name in self.paused,
            "concurrency": limits.concurrency,
            "rate_limit": None if rate is None else f"{rate.count}/{rate.period:g}",
            "max_size": limits.max_size,
            "keep_order": limits.keep_order,
        }


async def _read(queue: Queue) -> _Settings:
    return _Settings(
        await queue.get_group_counts(),
        await queue.get_group_weights(),
        await queue.get_group_limits(),
        await queue.get_paused_groups(),
    )


def list_groups(
    queue: BullmqArgument, redis: RedisUrl = None, prefix: Prefix = None, as_json: AsJson = False
) -> None:
    """List the groups that have jobs, limits or a weight. It looks at all jobs that have not ended."""
    where, target = QueueName.parse(queue), Target.of(redis, prefix)

    async def run() -> _Settings:
        async with target.bullmq(where, "groups", read_only=True) as opened:
            return await _read(opened)

    found = asyncio.run(run())
    facts = [found.facts(name) for name in found.names()]
    if as_json:
        emit(facts)
        return
    columns = list(GroupCounts.__dataclass_fields__)
    rows = [
        (one["group"] or _ALL_GROUPS, *(one[name] for name in columns), f"{one['weight']:g}", _limits(one))
        for one in facts
    ]
    show(
        ["group", *columns, "weight", "limits"],
        rows,
        right=[*columns, "weight"],
        empty=f"{queue} has no groups",
    )


def _limits(facts: dict[str, object]) -> str:
    flags = [name.replace("_", " ") for name in ("paused", "keep_order") if facts[name]]
    numbers = [(name, facts[name]) for name in ("concurrency", "rate_limit", "max_size")]
    given = [f"{name.replace('_', ' ')} {value}" for name, value in numbers if value is not None]
    return ", ".join(given + flags)


def set_group(
    queue: BullmqArgument,
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP]", help="Without it: every group without limits of its own.", show_default=False
        ),
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="From 1/16 to 16; 2 is served twice as often as 1.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="Jobs of the group that run at once, over all workers."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate-limit", metavar="JOBS/SECONDS", help="Jobs of the group that start, e.g. 100/60."
        ),
    ] = None,
    max_size: Annotated[
        int | None, typer.Option("--max-size", help="Jobs of the group that wait; a further one is refused.")
    ] = None,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="A retry is overtaken by none; needs --concurrency 1.")
    ] = False,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Remove the limits.")] = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Set the weight of a group, or its limits in place of those it had."""
    limits = GroupLimits(
        concurrency=concurrency,
        rate_limit=None if rate is None else parse_rate(rate),
        max_size=max_size,
        keep_order=keep_order,
    )
    has_limits = limits != GroupLimits()
    _check(group, weight, has_limits, no_limits)

    async def change(opened: Queue) -> dict[str, object]:
        if group is not None and weight is not None:
            await opened.set_group_weight(group, weight)
        if has_limits or no_limits:
            await opened.set_group_limits(group, None if no_limits else limits)
        weights, known = await opened.get_group_weights(), await opened.get_group_limits()
        facts = _Settings({}, weights, known, await opened.get_paused_groups()).facts(group)
        return {name: value for name, value in facts.items() if name not in GroupCounts.__dataclass_fields__}

    facts = run_on_queue(Target.of(redis, prefix), queue, "groups", change)
    line = f"{_named(group)} of {queue}: weight {facts['weight']:g}, {_limits(facts) or 'no limits'}"
    print_result({"queue": queue, **facts}, line, as_json=as_json)


def _named(group: str | None) -> str:
    return "all groups without limits of their own" if group is None else f"group {group}"


def _check(group: str | None, weight: float | None, has_limits: bool, no_limits: bool) -> None:
    if has_limits and no_limits:
        raise InvalidOption("--no-limits", "cannot be combined with limits", "leave one of them out")
    if weight is not None and group is None:
        raise InvalidOption("group", "is missing", "name the group whose weight is set")
    if weight is None and not has_limits and not no_limits:
        raise InvalidOption(
            "options", "are missing", "give --weight, --concurrency, --rate-limit, --max-size or --no-limits"
        )


def pause(
    queue: BullmqArgument,
    group: GroupArgument,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Hold the jobs of a group back; active jobs continue."""
    run_on_queue(Target.of(redis, prefix), queue, "groups", lambda one: one.pause_group(group))
    facts = {"queue": queue, "group": group, "paused": True}
    print_result(facts, f"group {group} of {queue} is paused", as_json=as_json)


def resume(
    queue: BullmqArgument,
    group: GroupArgument,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Let the jobs of a paused group run again."""
    run_on_queue(Target.of(redis, prefix), queue, "groups", lambda one: one.resume_group(group))
    facts = {"queue": queue, "group": group, "paused": False}
    print_result(facts, f"group {group} of {queue} runs", as_json=as_json)
