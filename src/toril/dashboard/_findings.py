"""Findings of the doctor, kept between pages: an examination takes longer than a page may."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from toril.dashboard._sources import QueueSource, Sources
from toril.dashboard.access import Access
from toril.errors import TorilError
from toril.observe.doctor import Diagnosis, Doctor, Finding

KEPT_SECONDS: Final = 60.0
# Keys of each queue that are examined; `toril doctor` examines more.
MOST_KEYS: Final = 2_000


class Findings:
    """The last diagnosis of each server."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._known: dict[str, tuple[float, Diagnosis | TorilError]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def moment(self) -> float:
        """When the newest diagnosis was made."""
        return max((at for at, _ in self._known.values()), default=0.0)

    def known(self, access: Access) -> dict[str, list[Finding]]:
        """Returns the findings of each queue that are known now."""
        found: dict[str, list[Finding]] = {}
        for source in self._sources.all:
            _, diagnosis = self._known.get(source.name, (0.0, None))
            if isinstance(diagnosis, Diagnosis):
                for one in diagnosis.problems():
                    if one.queue and access.sees(one.queue):
                        name = f"{source.name}::{one.queue}" if source.is_one_of_many else one.queue
                        found.setdefault(name, []).append(one)
        return found

    async def diagnoses(self, *, wait_seconds: float) -> dict[str, Diagnosis | TorilError | None]:
        """Returns the diagnosis of each server; None while the first examination runs."""
        for source in self._sources.all:
            self._begin(source)
        running = list(self._running.values())
        if running:
            await asyncio.wait(running, timeout=wait_seconds)
        return {one.name: self._known.get(one.name, (0.0, None))[1] for one in self._sources.all}

    def _begin(self, source: QueueSource) -> None:
        at, _ = self._known.get(source.name, (-KEPT_SECONDS, None))
        if source.name in self._running or time.monotonic() - at < KEPT_SECONDS:
            return
        task = asyncio.create_task(self._examine(source), name="toril-doctor")
        self._running[source.name] = task
        task.add_done_callback(lambda _: self._running.pop(source.name, None))

    async def _examine(self, source: QueueSource) -> None:
        options = source.options
        doctor = Doctor(
            options.redis, queues=options.queues, prefix=options.prefix, env=options.env, most_keys=MOST_KEYS
        )
        try:
            result: Diagnosis | TorilError = await doctor.examine()
        except TorilError as error:
            result = error
        self._known[source.name] = (time.monotonic(), result)

    async def close(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
