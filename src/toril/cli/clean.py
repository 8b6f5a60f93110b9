"""`toril clean`: removes old jobs of one state."""

from __future__ import annotations

from typing import Annotated

import typer

from toril.cli._completion import complete_state
from toril.cli._confirm import ask
from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl, Yes
from toril.cli._output import in_progress, print_result
from toril.cli._queue_operations import run_on_queue
from toril.cli._target import Target


def add_to(app: typer.Typer) -> None:
    app.command("clean")(clean)


def clean(
    queue: BullmqArgument,
    state: Annotated[
        str,
        typer.Option(
            "--state", help="completed, failed, delayed, waiting, active, …", autocompletion=complete_state
        ),
    ] = "completed",
    older_than: Annotated[float, typer.Option("--older-than", min=0, help="Seconds since they ended.")] = 0.0,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")] = 0,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Remove old jobs of one state."""
    ask(f"Remove {state} jobs of {queue} that are older than {older_than:g} s?", yes=yes)
    with in_progress(f"cleaning {queue}"):
        ids = run_on_queue(
            Target.of(redis, prefix), queue, "clean", lambda one: one.clean(older_than, limit, state)
        )
    print_result({"queue": queue, "removed": ids}, f"{len(ids)} jobs removed", as_json=as_json)
