"""Jobs that are stuck: in no list, without data, without a lock, overdue, without a worker.

Guarantee: a job that moves meanwhile is not reported: every finding is confirmed by a second examination. At most
`most_keys` keys of a queue and ids of each list are read, and a warning says when that was not all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from toril.commands import read, server
from toril.commands.command import plain
from toril.commands.overview import EnvelopeOverview, QueueOverview
from toril.errors import TorilError
from toril.observe.doctor._broken_links import examine_links
from toril.observe.doctor._finding import Finding, problem, warning
from toril.observe.doctor._groups import examine_groups
from toril.observe.doctor._lost import (
    CONFIRM_AFTER,
    ids_without_data,
    ids_without_hash,
    in_parts,
    jobs_in_no_list,
    listed_ids,
    next_jobs_left,
    search,
)
from toril.observe.doctor._schedulers import examine_schedulers
from toril.observe.overview import QueueFigures
from toril.protocol.keys import QueueKeys, client_name
from toril.transport import AsyncTransport

MOST_KEYS: Final = 20_000
OVERDUE: Final = 30.0  # seconds past its time: many times what an idle worker needs
NOT_TAKEN: Final = 60.0  # seconds ready without being taken
SHOWN: Final = 3  # ids in a message
NUMBERS: Final = ("opts.maxLenEvents", "concurrency", "max", "duration")  # fields of the meta hash


async def examine_queue(
    transport: AsyncTransport, figures: QueueFigures, most_keys: int = MOST_KEYS
) -> list[Finding]:
    """Returns findings about stuck jobs of a queue."""
    keys, name = figures.queue.keys, str(figures.queue)
    overview = figures.overview
    if not isinstance(keys, QueueKeys) or not isinstance(overview, QueueOverview):
        return list(examine_envelopes(figures))
    found = await search(transport, keys, most_keys)
    listed = await listed_ids(transport, keys, most_keys)
    active = await transport.run(read.get_ranges(keys, ["active"]))
    workers = await _workers(transport, keys)
    findings = [
        *await _settings(transport, keys, name),
        *await _in_no_list(transport, keys, found.jobs, name),
        *await _missing_data(transport, keys, listed.waiting, name),
        *await _without_hash(transport, keys, [*listed.waiting, *listed.others], name),
        *await _left_next_jobs(transport, keys, found.next_jobs, name),
        *await examine_links(transport, keys, name, most_keys),
        *await examine_schedulers(transport, keys, name, figures.now_ms),
        *await _locks_of_inactive_jobs(transport, keys, found.locks, name),
        *await _without_lock(transport, keys, active, workers, name),
        *await _overdue(transport, keys, workers, figures.now_ms, name),
        *(await _without_marker(transport, keys, overview, name) if figures.oldest_waiting >= 1 else ()),
        *_not_taken(figures, workers, name),
        *await examine_groups(transport, keys, figures, name),
    ]
    if found.undecodable:
        message = f"{found.undecodable} keys are no UTF-8 text and could not be examined"
        findings.append(
            warning("stuck", message, "find out which program writes them, and remove them", name)
        )
    if not (found.complete and listed.complete):
        message = f"only {most_keys} of its keys, or of the ids of a list, were examined: not all is known"
        findings.append(warning("stuck", message, "examine all of them with a higher --most-keys", name))
    return findings


async def _settings(transport: AsyncTransport, keys: QueueKeys, name: str) -> list[Finding]:
    """Finds settings of the queue that are no numbers: the scripts of BullMQ, which compute with them, fail."""
    meta = await transport.run(read.get_meta(keys))
    return [
        problem(
            "stuck",
            f"the setting {field} is not a number, so jobs can be neither added nor ended",
            f"correct or remove the field {field} of the hash {keys.meta}",
            name,
        )
        for field in NUMBERS
        if field in meta and not meta[field].isdecimal()
    ]


async def _in_no_list(
    transport: AsyncTransport, keys: QueueKeys, jobs: Sequence[str], name: str
) -> list[Finding]:
    lost = await jobs_in_no_list(transport, keys, jobs)
    if not lost:
        return []
    return [
        problem(
            "stuck",
            f"{len(lost)} jobs are in no list, so no worker takes them: {_some(lost)}",
            "`toril doctor --repair` puts them back; `toril remove` removes those that are not needed",
            name,
        )
    ]


async def _left_next_jobs(
    transport: AsyncTransport, keys: QueueKeys, stored: Sequence[str], name: str
) -> list[Finding]:
    left = await next_jobs_left(transport, keys, stored)
    if not left:
        return []
    return [
        problem(
            "stuck",
            f"{len(left)} jobs that were to follow another one (keepLastIfActive) were not added when it ended: "
            f"{_some(left)}; a worker of BullMQ 5 ended it, which does not know this option",
            "a sweep of a toril worker, or `toril doctor --repair`, adds them; run such queues with BullMQ 6 or toril",
            name,
        )
    ]


async def _missing_data(
    transport: AsyncTransport, keys: QueueKeys, waiting: Sequence[str], name: str
) -> list[Finding]:
    empty = await ids_without_data(transport, keys, waiting)
    if not empty:
        return []
    return [
        problem(
            "stuck",
            f"{len(empty)} waiting jobs have no data: {_some(empty)}; keys were deleted by hand or evicted, or a drain "
            "of BullMQ took them for the next run of a scheduler",
            "check the eviction policy; `toril doctor --repair` takes them out of their lists",
            name,
        )
    ]


async def _without_hash(
    transport: AsyncTransport, keys: QueueKeys, ids: Sequence[str], name: str
) -> list[Finding]:
    found = await ids_without_hash(transport, keys, ids)
    if not found:
        return []
    return [
        problem(
            "stuck",
            f"{len(found)} ids are no jobs, because their keys hold another type than a hash: {_some(found)}",
            "find out which program does it; `toril remove` removes them by id",
            name,
        )
    ]


async def _locks_of_inactive_jobs(
    transport: AsyncTransport, keys: QueueKeys, locks: Sequence[str], name: str
) -> list[Finding]:
    suspects = list(locks)
    for pause in (0.0, CONFIRM_AFTER):
        await asyncio.sleep(pause if suspects else 0)
        states = await in_parts(transport, [read.get_state(keys, job_id) for job_id in suspects])
        there = await in_parts(transport, [read.get_lock(keys, job_id) for job_id in suspects])
        suspects = [
            job_id
            for job_id, state, lock in zip(suspects, states, there, strict=True)
            if state != "active" and isinstance(lock, str)
        ]
    if not suspects:
        return []
    return [
        warning(
            "stuck",
            f"{len(suspects)} locks belong to jobs that are not active: {_some(suspects)}",
            "they expire by themselves; if they stay, a client renews locks of jobs that it has lost: restart it",
            name,
        )
    ]


async def _without_lock(
    transport: AsyncTransport, keys: QueueKeys, active: Sequence[str], workers: int, name: str
) -> list[Finding]:
    suspects = list(active)
    for pause in (0.0, CONFIRM_AFTER):
        await asyncio.sleep(pause if suspects else 0)
        locks = await in_parts(transport, [read.get_lock(keys, job_id) for job_id in suspects])
        states = await in_parts(transport, [read.get_state(keys, job_id) for job_id in suspects])
        suspects = [
            job_id
            for job_id, lock, state in zip(suspects, locks, states, strict=True)
            if lock is None and state == "active"
        ]
    if not suspects:
        return []
    message = f"{len(suspects)} active jobs have no lock, their workers have died: {_some(suspects)}"
    if workers:
        return [warning("stuck", message, "the workers put them back with their next two sweeps", name)]
    return [problem("stuck", message, "start a worker: it puts them back with its second sweep", name)]


async def _overdue(
    transport: AsyncTransport, keys: QueueKeys, workers: int, now_ms: int, name: str
) -> list[Finding]:
    limit = (now_ms - int(OVERDUE * 1000)) * 4096
    late = await transport.run(plain(int, "ZCOUNT", keys.delayed, "-inf", limit))
    if not late:
        return []
    remedy = (
        "start a worker"
        if not workers
        else "restart the workers; check whether the queue is paused or rate limited"
    )
    message = f"{late} delayed jobs are more than {OVERDUE:g} s past their time"
    return [problem("stuck", message, remedy, name)]


async def _without_marker(
    transport: AsyncTransport, keys: QueueKeys, overview: QueueOverview, name: str
) -> list[Finding]:
    """Returns a finding if jobs are ready, no marker wakes idle workers, and no worker is busy."""
    if not overview.counts.ready or overview.paused or overview.counts.active:
        return []
    marker, limiter, ready = await transport.run_many(
        [
            plain(int, "ZCARD", keys.marker),
            plain(int, "PTTL", keys.limiter),
            plain(int, "EXISTS", keys.wait, keys.prioritized),
        ]
    )
    if marker or limiter > 0 or not ready:
        return []
    return [
        problem(
            "stuck",
            f"{overview.counts.ready} jobs are ready, but the marker that wakes idle workers is missing",
            "add a job or run `toril resume`: both write the marker",
            name,
        )
    ]


async def _workers(transport: AsyncTransport, keys: QueueKeys) -> int:
    """Returns the number of connected workers, of any library."""
    try:
        clients = await transport.run(server.client_list(keys.meta))
    except TorilError:
        return 0
    name = client_name(keys, "worker")
    return sum(one.get("name") == name or one.get("name", "").startswith(f"{name}:w:") for one in clients)


def _not_taken(figures: QueueFigures, workers: int, name: str) -> Iterator[Finding]:
    if not figures.ready or figures.oldest_waiting < NOT_TAKEN:
        return
    waits = f"{figures.ready} jobs wait, the next one for {figures.oldest_waiting:.0f} s"
    if figures.paused:
        yield warning(
            "neglected", f"{waits}: the queue is paused", "run `toril resume` when it may continue", name
        )
    elif not workers and not figures.workers:
        yield problem("neglected", f"{waits}: no worker is connected", "start one: `toril worker`", name)


def examine_envelopes(figures: QueueFigures) -> Iterator[Finding]:
    """Yields findings about a list or stream queue."""
    overview, name = figures.overview, str(figures.queue)
    if not isinstance(overview, EnvelopeOverview):
        return
    if overview.totals.get("trimmed"):
        yield problem(
            "stuck",
            f"{overview.totals['trimmed']} entries were trimmed before they were processed",
            "do not trim the stream by hand; keep more entries (keep=)",
            name,
        )
    if figures.ready and figures.oldest_waiting > NOT_TAKEN and not figures.workers:
        message = (
            f"{figures.ready} jobs wait, the next one for {figures.oldest_waiting:.0f} s: no worker reports"
        )
        yield problem("neglected", message, "start one: `toril worker`", name)
    if overview.active and not figures.workers and figures.queue.kind == "stream":
        message = f"{overview.active} entries were delivered and never acknowledged, and no worker reports"
        yield problem("stuck", message, "start a worker: it claims them after their idle time", name)


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN]) + ("" if len(ids) <= SHOWN else f" and {len(ids) - SHOWN} more")
