"""Jobs in no list, and ids in lists without a job.

Guarantee: a job that moves meanwhile is not reported: every finding is confirmed by a second examination. A search
reads a bounded number of keys, and reports whether that was all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from toril.commands import read
from toril.commands.command import plain
from toril.errors import TorilError
from toril.protocol.keys import RESERVED_IDS, QueueKeys
from toril.transport import AsyncTransport
from toril.transport.discovery import STEP, escape_pattern, is_decodable, nodes_of, scan_pages

PIPELINE: Final = 500
CONFIRM_AFTER: Final = 0.3  # seconds: longer than any script runs
# The keys of a queue are searched among those of other queues: so many are scanned for each key wanted.
SCANNED_PER_KEY: Final = 10


@dataclass(slots=True)
class FoundKeys:
    """The jobs, locks and stored next jobs among the keys of a queue."""

    jobs: list[str]
    locks: list[str]
    next_jobs: list[str]  # deduplication ids with a job that is stored to follow another one
    complete: bool
    undecodable: int = 0  # keys that are no UTF-8 text


async def search(transport: AsyncTransport, keys: QueueKeys, most: int) -> FoundKeys:
    """Returns the ids of jobs and of locks among up to `most` keys of a queue."""
    found = FoundKeys([], [], [], True)
    shape = re.compile(re.escape(keys.base) + r"((?:repeat:[^:]+:)?[^:]+)(:lock)?", re.DOTALL)
    next_job = keys.next_job("")
    matching = passed = 0
    async for node in nodes_of(transport):
        async for page in scan_pages(node, f"{escape_pattern(keys.base)}*"):
            found.undecodable += sum(not is_decodable(key) for key in page)
            for key in filter(is_decodable, page[: most - matching]):
                match = shape.fullmatch(key)
                if key.startswith(next_job):
                    found.next_jobs.append(key.removeprefix(next_job))
                elif match and match[1] not in RESERVED_IDS:
                    (found.locks if match[2] else found.jobs).append(match[1])
            matching += len(page)
            passed += STEP
            if matching > most or passed > most * SCANNED_PER_KEY:
                found.complete = False
                return found
    return found


async def jobs_in_no_list(transport: AsyncTransport, keys: QueueKeys, jobs: Sequence[str]) -> list[str]:
    """Returns the jobs that have data and are in no list."""
    suspects = await _in_no_list(transport, keys, jobs)
    if suspects:
        await asyncio.sleep(CONFIRM_AFTER)
        suspects = await _in_no_list(transport, keys, suspects)
    return suspects


async def _in_no_list(transport: AsyncTransport, keys: QueueKeys, jobs: Sequence[str]) -> list[str]:
    states = await in_parts(transport, [read.get_state(keys, job_id) for job_id in jobs])
    lost = [job_id for job_id, state in zip(jobs, states, strict=True) if state == "unknown"]
    # Only a hash with a name is a job; it must still exist after its state was read.
    fields = await in_parts(
        transport, [read.get_fields(keys, job_id, ["name", "timestamp"]) for job_id in lost]
    )
    return [
        job_id
        for job_id, found in zip(lost, fields, strict=True)
        if not isinstance(found, TorilError) and None not in found
    ]


async def next_jobs_left(transport: AsyncTransport, keys: QueueKeys, stored: Sequence[str]) -> list[str]:
    """Returns deduplication ids whose stored next job follows a job that has ended or does not exist."""
    suspects = await _next_jobs_left(transport, keys, stored)
    if suspects:
        await asyncio.sleep(CONFIRM_AFTER)
        suspects = await _next_jobs_left(transport, keys, suspects)
    return suspects


async def _next_jobs_left(transport: AsyncTransport, keys: QueueKeys, stored: Sequence[str]) -> list[str]:
    there = await in_parts(transport, [plain(bool, "EXISTS", keys.next_job(one)) for one in stored])
    stored = [one for one, exists in zip(stored, there, strict=True) if exists is True]
    holders = await in_parts(transport, [read.get_deduplication_job_id(keys, one) for one in stored])
    fields = await in_parts(
        transport, [read.get_fields(keys, holder or "", ["name", "finishedOn"]) for holder in holders]
    )
    return [
        one
        for one, found in zip(stored, fields, strict=True)
        if not isinstance(found, TorilError) and (found[0] is None or found[1] is not None)
    ]


@dataclass(frozen=True, slots=True)
class ListedIds:
    """The ids at the ends of the lists and sets of a queue."""

    waiting: list[str]  # of jobs that wait or are delayed
    others: list[str]  # of active and ended jobs, and of parents
    complete: bool  # no list has more ids


async def listed_ids(transport: AsyncTransport, keys: QueueKeys, most: int) -> ListedIds:
    """Returns up to `most` ids of each list and set, those at its ends."""
    waiting, all_waiting = await _ids_at_ends(
        transport, (keys.wait, keys.paused), (keys.prioritized, keys.delayed), most
    )
    ended = (keys.completed, keys.failed, keys.waiting_children)
    others, all_others = await _ids_at_ends(transport, (keys.active,), ended, most)
    return ListedIds(waiting, others, all_waiting and all_others)


async def _ids_at_ends(
    transport: AsyncTransport, lists: Sequence[str], sets: Sequence[str], most: int
) -> tuple[list[str], bool]:
    per_end = max(1, most // 2)
    ends = ((0, per_end - 1), (-per_end, -1))
    commands = [plain(_texts, "LRANGE", key, *end) for key in lists for end in ends]
    commands += [plain(_texts, "ZRANGE", key, *end) for key in sets for end in ends]
    pages = [[] if isinstance(one, TorilError) else one for one in await in_parts(transport, commands)]
    complete = all(
        len(first) < per_end or set(first) & set(last)
        for first, last in zip(pages[::2], pages[1::2], strict=True)
    )
    return list(dict.fromkeys(one for page in pages for one in page)), complete


async def ids_without_data(transport: AsyncTransport, keys: QueueKeys, waiting: Sequence[str]) -> list[str]:
    """Returns those of the waiting ids that have no job."""
    suspects = await _without_data(transport, keys, waiting)
    if suspects:
        await asyncio.sleep(CONFIRM_AFTER)
        suspects = await _without_data(transport, keys, suspects)
    return suspects


async def ids_without_hash(transport: AsyncTransport, keys: QueueKeys, ids: Sequence[str]) -> list[str]:
    """Returns those of the ids whose key holds another type than a hash."""
    kinds = await in_parts(transport, [plain(_text, "TYPE", keys.job(job_id)) for job_id in ids])
    return [job_id for job_id, kind in zip(ids, kinds, strict=True) if kind not in ("hash", "none")]


async def _without_data(transport: AsyncTransport, keys: QueueKeys, ids: Sequence[str]) -> list[str]:
    # Old versions left markers such as "0:1700000000000" among the waiting jobs.
    jobs = [job_id for job_id in ids if not job_id.startswith("0:")]
    there = await in_parts(transport, [plain(bool, "EXISTS", keys.job(job_id)) for job_id in jobs])
    empty = [job_id for job_id, found in zip(jobs, there, strict=True) if found is False]
    states = await in_parts(transport, [read.get_state(keys, job_id) for job_id in empty])
    waiting = ("waiting", "paused", "prioritized", "delayed", "wait")
    return [job_id for job_id, state in zip(empty, states, strict=True) if state in waiting]


async def in_parts(transport: AsyncTransport, commands: Sequence[Any]) -> list[Any]:
    """Returns the replies in order; the commands are sent in pipelines of a bounded length."""
    replies: list[Any] = []
    for start in range(0, len(commands), PIPELINE):
        replies += await transport.run_many(commands[start : start + PIPELINE])
    return replies


def _texts(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]


def _text(reply: bytes) -> str:
    return reply.decode(errors="replace")
