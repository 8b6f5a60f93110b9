"""The options that many commands share, each defined once."""

from __future__ import annotations

from typing import Annotated

import typer

from toril.cli._completion import complete_job, complete_queue, complete_queues

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
JobsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB]...", help="Ids of jobs.", autocompletion=complete_job, show_default=False),
]

QueuesOption = Annotated[
    str | None,
    typer.Option(
        "--queues",
        metavar="A,B",
        help="Only these: NAME, list:NAME, stream:NAME. Left out: all.",
        autocompletion=complete_queues,
    ),
]


def queue_names(text: str | None) -> list[str]:
    """The queues of a list with commas."""
    return [one.strip() for one in (text or "").split(",") if one.strip()]
