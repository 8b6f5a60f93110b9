"""In which order the jobs of groups were started, by the events of their queue."""

from __future__ import annotations

from toril import JobOptions, NewJob, Queue
from toril.commands.command import plain
from toril.transport import AsyncTransport

SIZES = {"large": 10_000, "small": 100, "other": 100}
# A fair order has started the last job of a small group after 300 jobs; the bound leaves room for jobs in flight.
FAIR_AFTER = 360


async def add_tenants(queue: Queue, sizes: dict[str, int] = SIZES) -> None:
    """Adds all jobs of one group, then all of the next."""
    for group, size in sizes.items():
        await queue.add_bulk(
            [NewJob("n", {"n": n}, JobOptions(group=group, job_id=f"{group}-{n}")) for n in range(size)]
        )


async def started(queue: Queue, url: str) -> list[str]:
    """The ids of jobs in the order in which they became active."""
    async with AsyncTransport(url) as transport:
        entries = await transport.run(plain(list, "XRANGE", queue.keys.events, "-", "+"))
    events = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]
    return [one[b"jobId"].decode() for one in events if one[b"event"] == b"active"]
