"""What the transforms should find, written again in plain Python and as plainly as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ENDS = {"completed", "failed", "waiting", "delayed", "waiting-children", "stalled"}


def attempts_of(events: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(job, attempt, outcome, ready ms, active ms, ended ms) of every pickup that ended, by a walk over the events."""
    found: list[tuple[Any, ...]] = []
    jobs: dict[str, dict[str, Any]] = {}
    for event in sorted(events, key=lambda one: (one["ms"], one["seq"])):
        job = jobs.setdefault(event["job_id"], {"attempt": 0, "ready": None, "active": None, "ended": None})
        kind, at = event["event"], event["ms"]
        if kind == "added":
            job.update(attempt=0, ready=at)
        elif kind == "active":
            job.update(attempt=job["attempt"] + 1, active=at, ended=None)
        elif kind in ENDS:
            if kind == "stalled" and job["ended"] is not None:
                # The sweep said `waiting` just before: that was no retry.
                found[job["ended"]] = (*found[job["ended"]][:2], "stalled", *found[job["ended"]][3:])
                job["ended"] = None
            elif job["active"] is not None:
                job["ended"] = len(found)
                found.append(
                    (event["job_id"], job["attempt"], outcome(kind), job["ready"], job["active"], at)
                )
                job["active"] = None
            if kind == "waiting":
                job["ready"] = at
    return found


def outcome(kind: str) -> str:
    return {
        "completed": "completed",
        "failed": "failed",
        "stalled": "stalled",
        "waiting-children": "suspended",
    }.get(kind, "retried")
