"""Results that become jobs of another queue, in the call that completes their jobs.

Guarantee: a result is added if and only if its job completed by the same call; a call that is sent again completes
nothing again, and adds nothing again.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from toril.commands.add import ADD_KEYS, JobToAdd, packed_arguments
from toril.commands.command import Arg, Command
from toril.commands.library import DECLARED, forwarding
from toril.commands.own_script import in_order
from toril.commands.signature import Signature
from toril.commands.worker import FetchReply, Settlement
from toril.protocol.keys import QueueKeys

_KEYS = (*ADD_KEYS.split(), "ledger")
DECLARED["parts/settle_forward"] = Signature(each=Settlement._fields, last_keys=_KEYS, last_args=("count",))

Forwards = Sequence[tuple[int, JobToAdd]]
"""Results that become jobs: the place of the settlement from 0 on, and the job without data, which is the result."""


def settle_and_forward(
    command: Command[FetchReply], target: QueueKeys, forwards: Forwards
) -> Command[FetchReply]:
    """Makes a call that settles jobs also add results of them to the queue `target`."""
    entries: list[Arg] = []
    for place, job in forwards:
        entries += (place + 1, job.kind, packed_arguments(target, job), job.packed_options)
    if command.script is None:
        raise TypeError("the command runs no script")
    return Command(
        (*command.args, *entries, len(forwards)),
        command.decode,
        forwarding(command.script, "add_jobs"),
        (*command.keys, *_target_keys(target)),
    )


@functools.lru_cache(maxsize=256)
def _target_keys(keys: QueueKeys) -> tuple[str, ...]:
    return in_order("settle_forward", _KEYS, keys, {"id_counter": keys.id, "ledger": keys.toril("ledger")})
