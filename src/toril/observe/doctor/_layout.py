"""Who else uses the queues: mixed key layouts, mixed generations of BullMQ.

Guarantee: what is said here is read from the queues' own keys, nothing is supposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from toril.commands.overview import QueueOverview
from toril.observe.doctor._finding import Finding, problem, warning
from toril.observe.overview import QueueFigures
from toril.transport.discovery import FoundQueue

OUR_GENERATION: Final = 5
_VERSION = re.compile(r"bullmq(?:-\w+)?:(\d+)")


def mixed_layouts(figures: Sequence[QueueFigures]) -> Iterator[Finding]:
    """Queues that live twice: with and without a hash tag."""
    by_name: dict[tuple[str, str], list[QueueFigures]] = {}
    for one in figures:
        if one.queue.kind == "bullmq":
            by_name.setdefault((one.queue.prefix, one.queue.name), []).append(one)
    for (prefix, name), twins in by_name.items():
        if len(twins) > 1 and all(sum(one.states.values()) for one in twins):
            yield problem(
                "layout",
                f"jobs lie under {prefix}:{name}:* and under {prefix}:{{{name}}}:*: two clients disagree on the keys",
                "give all clients the same hash_tag= (Node: the same name, with or without braces) and move the jobs",
                name,
            )


def mixed_generations(figures: QueueFigures) -> Iterator[Finding]:
    """Signs of another generation of BullMQ on the queue."""
    seen = figures.overview
    if not isinstance(seen, QueueOverview):
        return
    name = str(figures.queue)
    match = _VERSION.match(seen.version)
    if match and int(match[1]) > OUR_GENERATION:
        yield warning(
            "generation",
            f"the queue was made by {seen.version}, which keeps the jobs of a paused queue elsewhere than BullMQ 5",
            "do not pause or resume it from BullMQ 5; toril itself copes with both",
            name,
        )
    counts = seen.counts
    if counts.paused and counts.waiting:
        yield problem(
            "generation",
            f"{counts.paused} jobs lie in `paused` and {counts.waiting} in `wait`: two generations of BullMQ "
            "share the queue, and BullMQ 5 destroys one of the two lists when it pauses or resumes",
            "run `toril resume` (it puts the lists together), then use one generation",
            name,
        )
    elif counts.paused and not seen.paused:
        yield problem(
            "generation",
            f"{counts.paused} jobs lie in `paused`, but the queue is not paused: no worker sees them",
            "run `toril pause` and `toril resume`",
            name,
        )
    elif counts.waiting and seen.paused:
        yield warning(
            "generation",
            f"the queue is paused, yet {counts.waiting} jobs lie in `wait`: it was paused by BullMQ 6",
            "resume it with BullMQ 6 or with toril, not with BullMQ 5",
            name,
        )


def twins_of(queues: Sequence[FoundQueue]) -> list[FoundQueue]:
    """Each queue in both layouts: a layout without meta hides from the search, not from a look."""
    both = {(one.kind, one.prefix, one.name, one.env, tag) for one in queues for tag in (False, True)}
    made = []
    for kind, prefix, name, env, tag in sorted(both):
        one = FoundQueue(kind, name, prefix, env, tag)
        if one in queues or (kind == "bullmq" and "{" not in prefix and "{" not in name):
            made.append(one)
    return made
