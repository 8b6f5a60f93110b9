"""The options of `toril add` with their help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the job.", show_default=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOptions:
    """A group of options (see `_option_groups`)."""

    data: Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="The data of the job.")] = "{}"
    lines: Annotated[
        Path | None,
        typer.Option(
            "--lines",
            metavar="FILE",
            help="Add one job for each line of JSON in a file; - is standard input.",
        ),
    ] = None
    count: Annotated[int, typer.Option("--count", min=1, help="Number of times to add the job.")] = 1
    delay: Annotated[float | None, typer.Option("--delay", help="Seconds until it may run.")] = None
    priority: Annotated[int | None, typer.Option("--priority", help="1 is taken first. Default: none.")] = (
        None
    )
    attempts: Annotated[int | None, typer.Option("--attempts", help="Maximum number of attempts.")] = None
    backoff: Annotated[
        str | None,
        typer.Option("--backoff", metavar="KIND:SECONDS", help="Delay between attempts, e.g. exponential:2."),
    ] = None
    job_id: Annotated[
        str | None, typer.Option("--job-id", help="Id of the job; a job with the same id is not added again.")
    ] = None
    lifo: Annotated[bool, typer.Option("--lifo", help="Add it to the front of the queue.")] = False
    expires: Annotated[
        float | None,
        typer.Option(
            "--expires", metavar="SECONDS", help="Do not run it later than this after it was added."
        ),
    ] = None
    group: Annotated[
        str | None, typer.Option("--group", help="Its group; the groups of a queue are served in turns.")
    ] = None
    wait: Annotated[
        float | None,
        typer.Option("--wait", metavar="SECONDS", help="Wait for the end of the job and print its result."),
    ] = None
