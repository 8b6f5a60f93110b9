"""The options that many commands share, each defined once."""

from __future__ import annotations

from typing import Annotated

import typer

from toril.cli._completion import complete_job, complete_queue

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="The server: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded:FOLDER. "
        "Left out: TORIL_REDIS_URL, then the embedded server in ./.toril.",
        show_default=False,
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        "--prefix", help="What keys begin with; left out: bull (BullMQ) or msaas.", show_default=False
    ),
]
Env = Annotated[str, typer.Option("--env", help="The environment in the keys of list and stream queues.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueArgument = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE",
        help="NAME, list:NAME or stream:NAME.",
        autocompletion=complete_queue,
        show_default=False,
    ),
]
BullmqArgument = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE", help="The name of a BullMQ queue.", autocompletion=complete_queue, show_default=False
    ),
]
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The id of a job.", autocompletion=complete_job, show_default=False),
]
