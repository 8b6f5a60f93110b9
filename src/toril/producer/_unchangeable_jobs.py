"""Jobs that a change of many jobs leaves as before: another program stored something else under their keys."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from toril.errors import MalformedValue, RedisError
from toril.jobs import Job
from toril.protocol.printable import one_line

logger = logging.getLogger("toril.queue")

_NAMED: Final = 5  # ids in a message
_LONGEST: Final = 100  # characters of an id in a message
NO_HASH: Final = "it holds another type than a hash; `toril remove` removes it"


def is_data_error(result: object) -> bool:
    """Whether a result is the error of a command that failed because of what is stored."""
    return isinstance(result, RedisError) and result.concerns_data


def is_lifo(job: Job[Any]) -> bool:
    """Whether a job goes to the front of its queue; False if its options do not parse."""
    try:
        return bool(job.opts.get("lifo"))
    except MalformedValue:
        return False


def warn_of_unchangeable(command: str, queue: str, ids: Sequence[str]) -> None:
    """Logs which jobs were left; nothing without ids."""
    if not ids:
        return
    names = ", ".join(one_line(one[:_LONGEST]) for one in ids[:_NAMED])
    logger.warning(
        "%s of %s left %d %s as before, because a key (of the job, its parent or its deduplication) holds another type "
        "than BullMQ stores: %s%s; `toril remove` removes such a job by its id",
        command,
        one_line(queue),
        len(ids),
        "job" if len(ids) == 1 else "jobs",
        names,
        f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "",
    )
