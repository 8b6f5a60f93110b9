"""What the lake knows: figures over time, errors, alerts, and jobs that were removed from Redis.

Guarantee: the lake is read in a thread, so that pages do not wait for each other. Without a lake, or without its extra,
every question has an empty answer and the page says how to get one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from toril.dashboard._rates import Rate, of_lake
from toril.dashboard.options import DashboardOptions
from toril.errors import ExtraMissing, LakeError, TorilError
from toril.protocol.extras import needed

if TYPE_CHECKING:
    from toril.lake import Lake

Rows = list[dict[str, Any]]
# The pipeline adds a minute when it is over.
RATES_EVERY: Final = 60.0


class History:
    """A lake, if there is one."""

    def __init__(self, options: DashboardOptions) -> None:
        self._place = options.lake
        self._storage_options = options.lake_options
        self._lake: Lake | None = None
        self._rates: Mapping[str, Rate] = {}
        self._rates_at = -RATES_EVERY - 1
        self._reading: asyncio.Task[None] | None = None
        self.problem = "" if options.lake else "no lake is configured"

    @property
    def place(self) -> str:
        return self._place or ""

    async def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> Rows:
        """Returns the rows of a query; none if there is no lake."""
        if self._place is None:
            return []
        try:
            return await asyncio.to_thread(self._query, sql, parameters or {})
        except ExtraMissing as error:
            self.problem = str(error)
            return []
        except (LakeError, TorilError) as error:
            self.problem = str(error)
            return []

    def _query(self, sql: str, parameters: Mapping[str, object]) -> Rows:
        if self._lake is None:
            with needed("lake"):
                from toril.lake import Lake
            self._lake = Lake(self._place or "", self._storage_options)
        found: Rows = self._lake.query(sql, parameters).to_pylist()
        self.problem = ""
        return found

    def rates(self) -> Mapping[str, Rate]:
        """Returns the rates that the lake knows, read in the background once a minute; none for the first pages."""
        due = time.monotonic() - self._rates_at > RATES_EVERY
        if self._place is not None and due and (self._reading is None or self._reading.done()):
            self._rates_at = time.monotonic()
            self._reading = asyncio.create_task(self._read_rates(), name="toril-lake-rates")
        return self._rates

    async def _read_rates(self) -> None:
        now = datetime.now(UTC)
        rows = await self.rows(
            "select queue, minute, completed, failed from gold.queue_minute "
            "where minute >= $start and minute < $end limit 100000",
            # The minute of now is not over.
            {"start": now - timedelta(hours=1, minutes=5), "end": now - timedelta(minutes=1)},
        )
        self._rates = of_lake(rows, now)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def job(self, queue: str, job_id: str) -> dict[str, Any] | None:
        """Returns what is known of a job that Redis no longer has."""
        found = await self.rows(
            "select * from silver.jobs where queue = $queue and job_id = $job order by updated_at desc limit 1",
            {"queue": queue, "job": job_id},
        )
        return found[0] if found else None

    async def attempts(self, queue: str, job_id: str) -> Rows:
        """Returns the attempts of a job, oldest first."""
        return await self.rows(
            "select * from silver.attempts where queue = $queue and job_id = $job order by ended_at limit 100",
            {"queue": queue, "job": job_id},
        )
