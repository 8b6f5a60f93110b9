"""`toril clean`: removes old jobs of one state."""

from __future__ import annotations

from typing import Annotated

import typer

from toril.cli._completion import complete_state
from toril.cli._confirm import confirm
from toril.cli._options import AsJson, BullmqArgument, Prefix, RedisUrl, Yes
from toril.cli._output import print_result, progress_bar
from toril.cli._queue_operations import run_on_queue
from toril.cli._target import Target


def add_to(app: typer.Typer) -> None:
    app.command("clean")(clean)


def clean(
    queue: BullmqArgument,
    state: Annotated[
        str,
        typer.Option(
            "--state",
            help="State of the jobs: completed, failed, delayed, waiting, active, …",
            autocompletion=complete_state,
        ),
    ] = "completed",
    older_than: Annotated[
        float, typer.Option("--older-than", min=0, help="Only jobs that ended so many seconds ago.")
    ] = 0.0,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Maximum number of jobs; 0: all.")] = 0,
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Remove old jobs of one state."""
    confirm(f"Remove {state} jobs of {queue} that are older than {older_than:g} s?", yes=yes)
    with progress_bar(f"cleaning {queue}"):
        ids = run_on_queue(
            Target.of(redis, prefix), queue, "clean", lambda one: one.clean(older_than, limit, state)
        )
    print_result({"queue": queue, "removed": ids}, f"{len(ids)} jobs removed", as_json=as_json)
