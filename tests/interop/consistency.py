"""What must hold in a keyspace at any moment, whoever wrote it.

Guarantee: an empty list means that every job is in exactly one state, that state's structures agree with the job's
own keys, and nothing refers to a job that is not there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.interop.keyspace import Entry, Keyspace

STATES = (
    "wait",
    "paused",
    "active",
    "prioritized",
    "delayed",
    "completed",
    "failed",
    "waiting-children",
)


def inconsistencies(keyspace: Keyspace, queue: str, prefix: str = "bull") -> list[str]:
    """Every broken rule, in words."""
    return list(_check(_Queue(keyspace, f"{prefix}:{queue}:")))


class _Queue:
    """One queue's part of a keyspace, by role."""

    def __init__(self, keyspace: Keyspace, base: str) -> None:
        self.entries = {
            key.removeprefix(base): entry for key, entry in keyspace.items() if key.startswith(base)
        }
        self.members = {state: _members(self.entries.get(state)) for state in STATES}
        self.jobs = {role for role, entry in self.entries.items() if _is_job(entry)}

    def state_of(self, job_id: str) -> list[str]:
        return [state for state in STATES if job_id in self.members[state]]


def _is_job(entry: Entry) -> bool:
    return isinstance(entry.content, dict) and "timestamp" in entry.content and "name" in entry.content


def _members(entry: Entry | None) -> list[str]:
    rows = entry.content if entry is not None and isinstance(entry.content, list) else []
    return [row if isinstance(row, str) else str(row[0]) for row in rows if not isinstance(row, dict)]


def _check(queue: _Queue) -> Iterator[str]:
    yield from _each_job_in_one_state(queue)
    yield from _no_state_without_job(queue)
    yield from _locks_belong_to_active(queue)
    yield from _finished_jobs_say_so(queue)
    yield from _paused_or_not(queue)


def _each_job_in_one_state(queue: _Queue) -> Iterator[str]:
    for job_id in sorted(queue.jobs):
        states = queue.state_of(job_id)
        if len(states) != 1:
            yield f"job {job_id} is in {states or 'no state'}"


def _no_state_without_job(queue: _Queue) -> Iterator[str]:
    for state, members in queue.members.items():
        for job_id, times in Counter(members).items():
            if job_id not in queue.jobs:
                yield f"{state} holds {job_id}, which has no hash"
            if times > 1:
                yield f"{state} holds {job_id} {times} times"


def _locks_belong_to_active(queue: _Queue) -> Iterator[str]:
    active = set(queue.members["active"])
    for role, entry in queue.entries.items():
        if not role.endswith(":lock"):
            continue
        job_id = role.removesuffix(":lock")
        if job_id not in active:
            yield f"job {job_id} is locked by {entry.content} and not active"
        if entry.ttl is None:
            yield f"the lock of {job_id} never ends"


def _finished_jobs_say_so(queue: _Queue) -> Iterator[str]:
    for state, field in (("completed", "returnvalue"), ("failed", "failedReason")):
        for job_id in queue.members[state]:
            entry = queue.entries.get(job_id)
            fields = entry.content if entry is not None and isinstance(entry.content, dict) else {}
            for name in (field, "finishedOn"):
                if name not in fields:
                    yield f"job {job_id} is {state} without {name}"


def _paused_or_not(queue: _Queue) -> Iterator[str]:
    meta = queue.entries.get("meta")
    paused = meta is not None and "paused" in meta.content
    if paused and queue.members["wait"]:
        yield "the queue is paused and holds jobs in wait"
    if not paused and queue.members["paused"]:
        yield "the queue is not paused and holds jobs in paused"
