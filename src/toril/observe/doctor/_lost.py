"""Jobs without a place, and places without a job.

Guarantee: what moves while we look is not named: every suspect is looked at a second time. A search looks at a bounded
number of keys, and says when that was not all.
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
from toril.transport.discovery import STEP, escape_pattern, nodes_of, scan_pages

PIPELINE: Final = 500
SECOND_LOOK: Final = 0.3  # seconds: longer than any script runs
# Ids looked at from each end of a list or set: what is wrong with one is seldom in the middle of a million others.
EACH_END: Final = 1000
# The keys of a queue are searched for among those of its neighbours: for each key wanted, so many are looked at.
NEIGHBOURS: Final = 10


@dataclass(slots=True)
class FoundKeys:
    """What a search through a queue's keys found."""

    jobs: list[str]
    locks: list[str]
    complete: bool


async def search(transport: AsyncTransport, keys: QueueKeys, most: int) -> FoundKeys:
    """Up to `most` keys of a queue: the ids of jobs and of locks among them."""
    found = FoundKeys([], [], True)
    shape = re.compile(re.escape(keys.base) + r"((?:repeat:[^:]+:)?[^:]+)(:lock)?", re.DOTALL)
    matching = passed = 0
    async for node in nodes_of(transport):
        async for page in scan_pages(node, f"{escape_pattern(keys.base)}*"):
            for match in map(shape.fullmatch, page[: most - matching]):
                if match and match[1] not in RESERVED_IDS:
                    (found.locks if match[2] else found.jobs).append(match[1])
            matching += len(page)
            passed += STEP
            if matching > most or passed > most * NEIGHBOURS:
                found.complete = False
                return found
    return found


async def jobs_in_no_list(transport: AsyncTransport, keys: QueueKeys, jobs: Sequence[str]) -> list[str]:
    """Those of the jobs that have data and are in no list."""
    suspects = await _in_no_list(transport, keys, jobs)
    if suspects:
        await asyncio.sleep(SECOND_LOOK)
        suspects = await _in_no_list(transport, keys, suspects)
    return suspects


async def _in_no_list(transport: AsyncTransport, keys: QueueKeys, jobs: Sequence[str]) -> list[str]:
    states = await in_parts(transport, [read.get_state(keys, job_id) for job_id in jobs])
    lost = [job_id for job_id, state in zip(jobs, states, strict=True) if state == "unknown"]
    # Only a hash with a name is a job; it must still be there after its state was asked for.
    fields = await in_parts(
        transport, [read.get_fields(keys, job_id, ["name", "timestamp"]) for job_id in lost]
    )
    return [
        job_id
        for job_id, found in zip(lost, fields, strict=True)
        if not isinstance(found, TorilError) and None not in found
    ]


async def ids_without_data(transport: AsyncTransport, keys: QueueKeys) -> list[str]:
    """Ids that wait, or are delayed, and have no job: of each place those near its ends are looked at."""
    lists = (keys.wait, keys.paused)
    sets = (keys.prioritized, keys.delayed)
    ends = ((0, EACH_END - 1), (-EACH_END, -1))
    commands = [plain(_texts, "LRANGE", key, *end) for key in lists for end in ends]
    commands += [plain(_texts, "ZRANGE", key, *end) for key in sets for end in ends]
    pages = await in_parts(transport, commands)
    ids = list(dict.fromkeys(one for page in pages if not isinstance(page, TorilError) for one in page))
    suspects = await _without_data(transport, keys, ids)
    if suspects:
        await asyncio.sleep(SECOND_LOOK)
        suspects = await _without_data(transport, keys, suspects)
    return suspects


async def _without_data(transport: AsyncTransport, keys: QueueKeys, ids: Sequence[str]) -> list[str]:
    # Old versions left markers such as "0:1700000000000" among the waiting jobs.
    jobs = [job_id for job_id in ids if not job_id.startswith("0:")]
    there = await in_parts(transport, [plain(bool, "EXISTS", keys.job(job_id)) for job_id in jobs])
    empty = [job_id for job_id, found in zip(jobs, there, strict=True) if found is False]
    states = await in_parts(transport, [read.get_state(keys, job_id) for job_id in empty])
    waiting = ("waiting", "paused", "prioritized", "delayed", "wait")
    return [job_id for job_id, state in zip(empty, states, strict=True) if state in waiting]


async def in_parts(transport: AsyncTransport, commands: Sequence[Any]) -> list[Any]:
    """Replies in order, asked for in pipelines of a bounded length."""
    replies: list[Any] = []
    for start in range(0, len(commands), PIPELINE):
        replies += await transport.run_many(commands[start : start + PIPELINE])
    return replies


def _texts(reply: list[bytes]) -> list[str]:
    return [one.decode(errors="replace") for one in reply]
