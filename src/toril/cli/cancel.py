"""`toril cancel`: ends one job, waiting or running."""

from __future__ import annotations

from typing import Annotated

import typer

from toril.cli._confirm import confirm
from toril.cli._options import AsJson, BullmqArgument, JobArgument, Prefix, RedisUrl, Yes
from toril.cli._output import print_result
from toril.cli._queue_operations import run_on_queue
from toril.cli._target import Target


def add_to(app: typer.Typer) -> None:
    app.command("cancel")(cancel)


def cancel(
    queue: BullmqArgument,
    job: JobArgument,
    reason: Annotated[
        str, typer.Option("--reason", help="The error with which the job fails.")
    ] = "cancelled",
    yes: Yes = False,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job: a waiting job is removed, a running job is stopped by its worker."""
    confirm(f"Cancel job {job} of {queue}?", yes=yes)
    what = run_on_queue(Target.of(redis, prefix), queue, "cancel", lambda one: one.cancel(job, reason))
    line = "removed: it had not begun" if what == "removed" else "its worker was asked to stop it"
    print_result({"queue": queue, "job": job, "outcome": what}, line, as_json=as_json)
