"""Failures: groups of failed jobs and dead letters of all queues by the pattern of their error."""

from __future__ import annotations

from typing import Final

from toril.dashboard._failures import Examination, FailureGroup
from toril.dashboard._view import Page, PageNotFound, View

# Queues of which it is said that not all failures were examined.
MOST_DEEPER: Final = 5


async def failures(view: View) -> Page:
    seen = await view.sources.overview(view.access)
    wanted = view.query("queue")
    meant = [one for one in seen.queues if not wanted or one.id == wanted]
    if wanted and not meant:
        raise PageNotFound(f"there is no queue {wanted!r}")
    failing = [one for one in meant if one.figures is not None and one.figures.dead]
    known = await view.parts.failures.groups(view, failing)
    groups = _groups(known)
    chosen = view.query("fp")
    detail = next((one for one in groups if chosen == f"{one.fingerprint}@{one.queue.id}"), None)
    return Page(
        template="failures",
        title="Failures",
        place="failures",
        values={
            "groups": groups[:200],
            "hidden": max(0, len(groups) - 200),
            "detail": detail,
            "chosen": chosen,
            "queues": [one.id for one in seen.queues],
            "queue_id": wanted,
            "examined": sum(one.examined for one in known.values()),
            "total": sum(one.figures.dead for one in failing if one.figures is not None),
            "deeper": [
                {"queue": one, "examined": known[one.id].examined, "total": one.figures.dead}
                for one in failing
                if one.figures is not None
                and known[one.id].is_done
                and one.figures.dead > known[one.id].examined
            ][:MOST_DEEPER],
            "is_done": all(one.is_done for one in known.values()),
            "errors": seen.errors | {queue: one.error for queue, one in known.items() if one.error},
            "now_ms": seen.now_ms,
        },
    )


def _groups(known: dict[str, Examination]) -> list[FailureGroup]:
    groups = [group for one in known.values() for group in one.groups.values()]
    return sorted(groups, key=lambda one: (-one.count, one.fingerprint))
