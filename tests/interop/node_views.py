"""What toril's getters answer, in the shape of Node's answers."""

from __future__ import annotations

from typing import Any

from toril import Job, Queue
from toril.protocol.record import JobRecord


class Looks:
    """The reading half of a side made of toril's own classes."""

    @property
    def queue(self) -> Queue[Any]:
        raise NotImplementedError

    def job_of(self, job_id: str, fields: dict[bytes, bytes] | None = None) -> Job[Any]:
        """A job by its id, whether it exists or not: refusals are looked at, too."""
        return Job(JobRecord(job_id, fields or {}), self.queue._calls)

    async def counts(self) -> dict[str, int]:
        return (await self.queue.get_job_counts()).as_dict()

    async def count(self) -> int:
        return await self.queue.count()

    async def is_paused(self) -> bool:
        return await self.queue.is_paused()

    async def counts_per_priority(self, *, priorities: list[int]) -> dict[str, int]:
        found = await self.queue.get_counts_per_priority(priorities)
        return {str(priority): count for priority, count in found.items()}

    async def jobs(self, *, states: list[str], start: int, end: int, asc: bool) -> list[str]:
        return [job.id for job in await self.queue.get_jobs(states, start, end, ascending=asc)]

    async def state(self, *, job_id: str) -> str:
        return (await self.queue.get_job_state(job_id)).value

    async def logs(self, *, job_id: str, start: int, end: int) -> dict[str, Any]:
        found = await self.queue.get_job_logs(job_id, start, end)
        return {"logs": found.lines, "count": found.count}

    async def metrics(self, *, state: Any) -> dict[str, Any]:
        found = await self.queue.get_metrics(state)
        return {
            "meta": {
                "count": found.count,
                "prevTS": found.previous_at_ms,
                "prevCount": found.previous_count,
            },
            "data": found.minutes,
            "count": found.points,
        }

    async def children_values(self, *, job_id: str) -> dict[str, Any]:
        return await self.job_of(job_id).get_children_values()

    async def dependencies(self, *, job_id: str) -> dict[str, list[str]]:
        found = await self.job_of(job_id).get_dependencies()
        parts = {"processed": found.processed, "unprocessed": found.unprocessed}
        return {
            name: sorted(part)
            for name, part in {**parts, "failed": found.failed, "ignored": found.ignored}.items()
        }
