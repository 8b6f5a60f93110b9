"""The weights of the groups of a queue, in a hash of their own.

Guarantee: setting a weight twice has the same effect as setting it once.
"""

from __future__ import annotations

import contextlib

from toril.commands.command import Command, plain
from toril.protocol.keys import QueueKeys


def set_weight(keys: QueueKeys, group: str, weight: float | None) -> Command[None]:
    """Sets how many jobs of a group are served while one of a group of weight 1 is; None means 1."""
    weights = _key(keys)
    if weight is None:
        return plain(_nothing, "HDEL", weights, group)
    return plain(_nothing, "HSET", weights, group, weight)


def get_weights(keys: QueueKeys) -> Command[dict[str, float]]:
    """Returns the weights that were set, by group."""
    return plain(_weights, "HGETALL", _key(keys))


def _weights(reply: list[bytes]) -> dict[str, float]:
    """What other programs stored and is no number has no effect in the script, and is left out."""
    weights: dict[str, float] = {}
    for group, weight in zip(reply[::2], reply[1::2], strict=True):
        with contextlib.suppress(ValueError):
            weights[group.decode(errors="replace")] = float(weight)
    return weights


def _key(keys: QueueKeys) -> str:
    return keys.toril("group-weights")


def _nothing(_: object) -> None:
    """The reply has no meaning."""
