"""Says that a queue has no worker, to those who wait for one of its jobs in vain."""

from __future__ import annotations

from typing import Final

from toril.commands.server import worker_clients
from toril.jobs._operations import Operation
from toril.protocol.keys import QueueKeys

HINT_SECONDS: Final = 1.0  # how long the question may delay the error


def no_worker(keys: QueueKeys) -> Operation[str]:
    """The end of a message about a job that did not finish; empty if a worker of its queue is connected."""
    if (yield worker_clients(keys)):
        return ""
    return f"; no worker of queue {keys.name!r} is connected"
