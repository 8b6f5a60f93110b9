"""Work whose course is written in the job itself, so that it must end the same whoever does it.

The Node driver has the same processor (node/live.mjs); `expected` says what must be found afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.interop.keyspace import Keyspace, canonical
from tests.interop.spelling import options_of
from toril import Job, NewJob, PermanentError, TransientError

BACKOFF_MS = 40  # Long enough to become a delayed job, short enough for a test.


@dataclass(frozen=True, slots=True)
class Work:
    """One job in BullMQ's words."""

    name: str
    data: dict[str, Any]
    opts: dict[str, Any]

    @property
    def id(self) -> str:
        job_id: str = self.opts["jobId"]
        return job_id

    def for_node(self) -> dict[str, Any]:
        return {"name": self.name, "data": self.data, "opts": self.opts}

    def for_toril(self) -> NewJob:
        return NewJob(self.name, self.data, options_of(self.opts))

    @property
    def runs(self) -> int:
        """How often a worker must start it."""
        if self.data.get("unrecoverable"):
            return 1
        return int(min(self.data.get("fail_times", 0) + 1, self.opts["attempts"]))

    @property
    def fails(self) -> bool:
        return bool(self.data.get("fail_times", 0) >= self.opts["attempts"] or self.data.get("unrecoverable"))


async def follow_instructions(job: Job[Any]) -> Any:
    """Do what the job's data says."""
    data = job.data
    for line in data.get("log", ()):
        await job.log(line)
    for progress in data.get("progress", ()):
        await job.update_progress(progress)
    if data.get("block"):
        await asyncio.Event().wait()
    if data.get("sleep_ms"):
        await asyncio.sleep(data["sleep_ms"] / 1000)
    if job.attempts_made < data.get("fail_times", 0):
        raise (PermanentError if data.get("unrecoverable") else TransientError)(data["error"])
    return data.get("result")


def workload(count: int, *, seed: int = 0) -> list[Work]:
    """Successes, failures, retries at once and with backoff, delays, priorities, progress and logs, well mixed."""
    chance = random.Random(seed)
    return [_work(number, chance) for number in range(count)]


def _work(number: int, chance: random.Random) -> Work:
    data: dict[str, Any] = {"result": {"n": number, "text": "ünï 💡"}}
    opts: dict[str, Any] = {"jobId": f"job-{number}", "attempts": chance.choice([1, 2, 3])}
    if chance.random() < 0.25:
        data |= {"fail_times": chance.choice([1, 2]), "error": f"failure of {number}"}
    if chance.random() < 0.05:
        data |= {"fail_times": 1, "error": "beyond repair", "unrecoverable": True}
    if chance.random() < 0.5:
        opts["backoff"] = {"type": chance.choice(["fixed", "exponential"]), "delay": BACKOFF_MS}
    if chance.random() < 0.2:
        opts["priority"] = chance.randint(1, 5)
    if chance.random() < 0.1:
        opts["delay"] = chance.choice([50, 150, 400])
    if chance.random() < 0.15:
        data["progress"] = [10, {"step": 2}, 100]
    if chance.random() < 0.15:
        data["log"] = ["started", f"line of {number}"]
    if chance.random() < 0.2:
        data["sleep_ms"] = chance.choice([1, 3, 8])
    return Work("work", data, opts)


def wrong_ends(keyspace: Keyspace, queue: str, works: Iterable[Work], prefix: str = "bull") -> list[str]:
    """Every job that is not where and what it must be when all work is done."""
    return [problem for work in works for problem in _wrong(keyspace, f"{prefix}:{queue}:", work)]


def _wrong(keyspace: Keyspace, base: str, work: Work) -> list[str]:
    entry = keyspace.get(base + work.id)
    if entry is None or not isinstance(entry.content, dict):
        return [f"{work.id} is lost"]
    ended = _members(keyspace, f"{base}{'failed' if work.fails else 'completed'}")
    problems = [] if work.id in ended else [f"{work.id} has not {'failed' if work.fails else 'completed'}"]
    for field, value in _expected(work).items():
        found = entry.content.get(field)
        if found != value:
            problems.append(f"{work.id} {field}: {found} instead of {value}")
    lines = keyspace.get(f"{base}{work.id}:logs")
    wanted = list(work.data.get("log", ())) * work.runs
    if (lines.content if lines else []) != wanted:
        problems.append(f"{work.id} has log {lines} instead of {wanted}")
    return problems


def _expected(work: Work) -> dict[str, str]:
    fields = {"atm": str(work.runs), "ats": str(work.runs)}
    if work.fails:
        fields["failedReason"] = work.data["error"]
    else:
        fields["returnvalue"] = canonical(json.dumps(work.data["result"]))
    if "progress" in work.data:
        fields["progress"] = canonical(json.dumps(work.data["progress"][-1]))
    return fields


def _members(keyspace: Keyspace, key: str) -> set[str]:
    entry = keyspace.get(key)
    rows: Any = [] if entry is None else entry.content
    return {row if isinstance(row, str) else row[0] for row in rows}
