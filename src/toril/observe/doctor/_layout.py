"""Other clients of the queues: mixed key layouts, mixed major versions of BullMQ.

Guarantee: every finding is read from the keys of the queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from toril.commands.overview import QueueOverview
from toril.observe.doctor._finding import Finding, problem, warning
from toril.observe.overview import QueueFigures
from toril.transport.discovery import FoundQueue

SUPPORTED_MAJOR: Final = 5
_VERSION = re.compile(r"bullmq(?:-\w+)?:(\d+)")


def mixed_layouts(figures: Sequence[QueueFigures]) -> Iterator[Finding]:
    """Finds queues that exist twice: with and without a hash tag."""
    by_name: dict[tuple[str, str], list[QueueFigures]] = {}
    for one in figures:
        if one.queue.kind == "bullmq":
            by_name.setdefault((one.queue.prefix, one.queue.name), []).append(one)
    for (prefix, name), layouts in by_name.items():
        if len(layouts) > 1 and all(sum(one.states.values()) for one in layouts):
            yield problem(
                "layout",
                f"jobs are under {prefix}:{name}:* and under {prefix}:{{{name}}}:*: two clients disagree on the keys",
                "give all clients the same hash_tag= (Node: the same name, with or without braces) and move the jobs",
                name,
            )


def mixed_generations(figures: QueueFigures) -> Iterator[Finding]:
    """Finds signs of another major version of BullMQ on the queue."""
    overview = figures.overview
    if not isinstance(overview, QueueOverview):
        return
    name = str(figures.queue)
    match = _VERSION.match(overview.version)
    if match and int(match[1]) > SUPPORTED_MAJOR:
        yield warning(
            "generation",
            f"the queue was made by {overview.version}, which stores jobs of a paused queue elsewhere than BullMQ 5",
            "do not pause or resume it from BullMQ 5; toril supports both",
            name,
        )
    counts = overview.counts
    if counts.paused and counts.waiting:
        yield problem(
            "generation",
            f"{counts.paused} jobs are in `paused` and {counts.waiting} in `wait`: two major versions of BullMQ "
            "share the queue, and BullMQ 5 destroys one of the two lists when it pauses or resumes",
            "run `toril resume` (it puts the lists together), then use one version",
            name,
        )
    elif counts.paused and not overview.paused:
        yield problem(
            "generation",
            f"{counts.paused} jobs are in `paused`, but the queue is not paused: no worker takes them",
            "run `toril pause` and `toril resume`",
            name,
        )
    elif counts.waiting and overview.paused:
        yield warning(
            "generation",
            f"the queue is paused, yet {counts.waiting} jobs are in `wait`: it was paused by BullMQ 6",
            "resume it with BullMQ 6 or with toril, not with BullMQ 5",
            name,
        )


def both_layouts(queues: Sequence[FoundQueue]) -> list[FoundQueue]:
    """Returns each queue in both layouts: the search does not find a layout without a meta key."""
    both = {(one.kind, one.prefix, one.name, one.env, tag) for one in queues for tag in (False, True)}
    queues_in_both = []
    for kind, prefix, name, env, tag in sorted(both):
        one = FoundQueue(kind, name, prefix, env, tag)
        if one in queues or (kind == "bullmq" and "{" not in prefix and "{" not in name):
            queues_in_both.append(one)
    return queues_in_both
