"""The methods of `Queue` about groups.

Guarantee: a limit that is set holds for jobs that begin from then on, whichever worker fetched those that run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from toril.commands import groups
from toril.errors import InvalidOption
from toril.jobs.type_variables import T
from toril.producer._base import QueuePart
from toril.protocol.group_limits import GroupCounts, GroupLimits
from toril.protocol.keys import check_text


class Groups(QueuePart[T]):
    """Weights, limits and counts of the groups of a queue."""

    async def set_group_weight(self, group: str, weight: float | None) -> None:
        """Sets the share of a group: of two groups with jobs, one of weight 2 is served twice as often; None means 1.

        It counts for jobs that are added from now on.
        """
        check_text("group", group)
        given: object = weight
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, (int, float)) or not 1 / 16 <= given <= 16
        ):
            raise InvalidOption("weight", f"is {given!r}", "give a number from 1/16 to 16, or None")
        await self._run(groups.set_weight(self.keys, group, weight))

    async def get_group_weights(self) -> dict[str, float]:
        """The weights that were set, by group."""
        return await self._run(groups.get_weights(self.keys))

    async def set_group_limits(self, group: str | None, limits: GroupLimits | None) -> None:
        """Sets the limits of a group, in place of those it had; None removes them.

        For the group None they are those of every group that has none of its own.
        """
        if group is not None:
            check_text("group", group)
        if limits is not None and not isinstance(limits, GroupLimits):
            raise InvalidOption(
                "limits", f"is a {type(limits).__name__}", "give GroupLimits(concurrency=1), or None"
            )
        await self._run(groups.set_limits(self.keys, group, limits))
        if limits is not None and limits.max_size is not None:
            # Jobs that are added from now on are counted by their adds.
            async for _ in self._pages("prioritized", "delayed", registers=True):
                pass

    async def get_group_limits(self) -> dict[str | None, GroupLimits]:
        """The limits that were set, by group; under None those of every group that has none of its own."""
        return await self._run(groups.get_limits(self.keys))

    async def get_paused_groups(self) -> list[str]:
        """The groups that are paused, in the order of their names."""
        paused = await self._run(groups.get_paused(self.keys))
        return sorted(paused)

    async def pause_group(self, group: str) -> None:
        """Holds the jobs of a group back; active jobs continue, and jobs can be added."""
        check_text("group", group)
        await self._run(groups.set_paused(self.keys, group, paused=True))

    async def resume_group(self, group: str) -> None:
        """Lets the jobs of a paused group run again."""
        check_text("group", group)
        await self._run(groups.set_paused(self.keys, group, paused=False))

    async def get_group_counts(self) -> dict[str, GroupCounts]:
        """The numbers of jobs of each group that has some, in the order of the names.

        It looks at all jobs that have not ended, in bounded calls. Jobs that move meanwhile may be counted twice or not
        at all.
        """
        found: dict[str, Counter[str]] = {}
        async for place, page in self._pages("prioritized", "delayed", "active"):
            for name, (jobs, held) in page.jobs.items():
                counted = found.setdefault(name, Counter())
                if place == "delayed":
                    counted.update(held=held, delayed=jobs - held)
                else:
                    counted["active" if place == "active" else "waiting"] += jobs
        return {name: GroupCounts(**found[name]) for name in sorted(found)}

    async def _pages(
        self, *places: groups.Place, registers: bool = False
    ) -> AsyncIterator[tuple[groups.Place, groups.GroupPage]]:
        for place in places:
            cursor = "0"
            while True:
                page = await self._run(groups.count_page(self.keys, place, cursor, registers=registers))
                yield place, page
                cursor = page.cursor
                if cursor == "0":
                    break
