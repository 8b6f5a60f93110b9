"""`toril groups`: the shares of a queue's groups."""

from __future__ import annotations

from typing import Annotated

import typer

from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl
from toril.cli._output import emit, print_line, print_result
from toril.cli._queue_operations import run_on_queue
from toril.cli._target import Target
from toril.errors import InvalidOption


def add_to(app: typer.Typer) -> None:
    app.command("groups")(groups)


def groups(
    queue: BullmqArgument,
    group: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP]", help="The group whose weight is set.", show_default=False),
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="From 1/16 to 16; 2 is served twice as often as 1.")
    ] = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """List the weights of groups that were set, or set the weight of one."""
    target = Target.of(redis, prefix)
    if group is not None and weight is not None:
        run_on_queue(target, queue, "groups", lambda one: one.set_group_weight(group, weight))
        facts = {"queue": queue, "group": group, "weight": weight}
        print_result(facts, f"group {group} of {queue} has weight {weight:g}", as_json=as_json)
        return
    if group is not None or weight is not None:
        missing = "--weight" if weight is None else "group"
        raise InvalidOption(missing, "is missing", "write `toril groups QUEUE GROUP --weight NUMBER`")
    weights = run_on_queue(target, queue, "groups", lambda one: one.get_group_weights())
    if as_json:
        emit(weights)
    elif not weights:
        print_line(f"all groups of {queue} have weight 1")
    for name, share in sorted(weights.items()) if not as_json else ():
        print_line(f"{name}  {share:g}")
