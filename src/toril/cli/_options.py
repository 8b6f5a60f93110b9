"""The options and arguments that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from toril.cli._completion import complete_job, complete_queue, complete_queues
from toril.cli._target import Target

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="The server: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded:FOLDER. "
        "Default: TORIL_REDIS_URL, then the embedded server in ./.toril.",
        show_default=False,
    ),
]
Prefix = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        help="Prefix of all keys. Default: bull (BullMQ queues) or msaas (list and stream queues).",
        show_default=False,
    ),
]
Env = Annotated[str, typer.Option("--env", help="The environment in the keys of list and stream queues.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
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
        help="Only these queues: NAME, list:NAME, stream:NAME. Default: all.",
        autocompletion=complete_queues,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """The server, and the prefix and environment of keys: a group of options (see `_option_groups`)."""

    redis: RedisUrl = None
    prefix: Prefix = None
    env: Env = "prod"

    def target(self) -> Target:
        """Returns the server that was named, or the default one; its address is printed first."""
        return Target.of(self.redis, self.prefix, self.env)


def queue_names(text: str | None) -> list[str]:
    """Returns the names in a list with commas."""
    return [one.strip() for one in (text or "").split(",") if one.strip()]
