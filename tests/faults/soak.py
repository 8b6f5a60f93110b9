"""An hour under load and faults: python -m tests.faults.soak [--minutes 60] [--seed N] [--rate 100].

Worker processes take jobs of one queue through a proxy while producers add them. Every few seconds something happens,
at random: a worker is killed, told to stop, or frozen for longer than its lock; calls are cut or swallowed; the server
is killed, hangs, forgets its scripts or runs out of memory. At the end everything is let finish and counted.

    lost        acknowledged jobs that are in no final state       must be 0
    repeated    runs beyond those that a job asked for             at most what killed, frozen and cut workers held
    stalled     jobs that came back because their worker was gone  explained by kills, freezes and outages

The exit code is 1 when a job was lost or more were repeated than the faults explain.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.faults.proxy import Kind, Proxy
from tests.faults.worker_processes import Fleet
from tests.servers import Server
from toril import Job, Queue
from toril.errors import TorilError
from toril.protocol.state import JobState

QUEUE = "soak"
CREW = 3
CONCURRENCY = 5
LOCK = 2.0
LEFT_TO_FINISH = 120.0  # seconds after the last fault
FINAL = (JobState.COMPLETED, JobState.FAILED)


@dataclass
class Books:
    """What was promised, and what happened."""

    added: dict[str, int] = field(default_factory=dict)  # job id → runs it asks for
    refused: int = 0
    faults: collections.Counter[str] = field(default_factory=collections.Counter)
    bad_exits: list[int] = field(default_factory=list)

    @property
    def explained(self) -> int:
        """How many runs may have been repeated: what was in hand when a worker, a line or the server went."""
        held = collections.Counter(
            {
                "kill a worker": 1,
                "freeze a worker": 2,
                "cut a call": 1,
                "kill the server": CREW,
                "hang the server": CREW,
            }
        )
        return sum(CONCURRENCY * 2 * held[what] * count for what, count in self.faults.items())


class Soak:
    """One server, one proxy, some workers, and somebody who breaks them."""

    def __init__(self, server: Server, proxy: Proxy, *, seed: int, rate: float) -> None:
        self._server = server
        self._proxy = proxy
        self._dice = random.Random(seed)
        self._rate = rate
        self._prefix = f"soak{uuid.uuid4().hex[:8]}"
        self._fleet = Fleet(
            proxy.url,
            self._prefix,
            QUEUE,
            record=server.url,
            lock=LOCK,
            concurrency=CONCURRENCY,
            max_stalled=1000,
            log=str(server.folder / "workers.log"),
        )
        self._over = asyncio.Event()
        self.books = Books()

    # --- load -----------------------------------------------------------------------------------------------

    async def produce(self, queue: Queue) -> None:
        while not self._over.is_set():
            await asyncio.gather(*(self._add(queue) for _ in range(10)))
            await asyncio.sleep(10 / self._rate)

    async def _add(self, queue: Queue) -> None:
        fails = int(self._dice.random() < 0.1)
        data = {"seconds": self._dice.random() * 0.05, "fail": fails}
        delay = self._dice.random() if self._dice.random() < 0.1 else 0
        try:
            job: Job[Any] = await queue.add("n", data, attempts=100, backoff=0.1, delay=delay)
        except TorilError:
            self.books.refused += 1  # said to the producer, hence not lost
        else:
            self.books.added[job.id] = 1 + fails

    # --- faults ---------------------------------------------------------------------------------------------

    async def break_things(self, until: float) -> None:
        faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a worker": self._kill_worker,
            "stop a worker": self._stop_worker,
            "freeze a worker": self._freeze_worker,
            "cut a call": self._cut,
            "forget the scripts": self._forget_scripts,
            "fill the memory": self._fill,
            "kill the server": self._kill_server,
            "hang the server": self._hang_server,
        }
        weights = [4, 4, 2, 8, 4, 1, 1, 1]
        while time.monotonic() < until:
            await asyncio.sleep(self._dice.random() * 2)
            what = self._dice.choices(list(faults), weights)[0]
            self.books.faults[what] += 1
            await faults[what]()
        self._over.set()

    def _any_worker(self) -> subprocess.Popen[bytes]:
        return self._dice.choice(self._fleet.crew)

    async def _replace(self) -> None:
        self._fleet._start({})

    async def _kill_worker(self) -> None:
        self._fleet.kill(self._any_worker())
        await self._replace()

    async def _stop_worker(self) -> None:
        code = await asyncio.to_thread(self._fleet.terminate, self._any_worker())
        if code not in (0, -signal.SIGTERM):  # the latter before it could listen
            self.books.bad_exits.append(code)
        await self._replace()

    async def _freeze_worker(self) -> None:
        one = self._any_worker()
        one.send_signal(signal.SIGSTOP)
        await asyncio.sleep(LOCK * 2)
        one.send_signal(signal.SIGCONT)

    async def _cut(self) -> None:
        kinds: list[Kind] = ["cut before", "cut after", "cut within", "swallow"]
        match = self._dice.choice([b":wait", b":stalled", b"BZPOPMIN", b"toril:ledger"])
        self._proxy.arm(self._dice.choice(kinds), match)

    async def _forget_scripts(self) -> None:
        with self._server.client() as client:
            for _ in range(10):
                client.script_flush()
                await asyncio.sleep(0.1)

    async def _fill(self) -> None:
        with self._server.client() as client:
            client.config_set("maxmemory", "1mb")
            await asyncio.sleep(1.5)
            client.config_set("maxmemory", "0")

    async def _kill_server(self) -> None:
        self._server.kill()
        await asyncio.sleep(self._dice.random())
        self._server.start()

    async def _hang_server(self) -> None:
        self._server.freeze()
        await asyncio.sleep(self._dice.random() * 4)
        self._server.thaw()

    # --- the whole ------------------------------------------------------------------------------------------

    async def run(self, minutes: float) -> dict[str, Any]:
        self._fleet.launch(CREW)
        try:
            async with Queue(QUEUE, redis=self._proxy.url, prefix=self._prefix) as queue:
                producing = asyncio.create_task(self.produce(queue))
                await self.break_things(time.monotonic() + minutes * 60)
                await producing
            async with Queue(QUEUE, redis=self._server.url, prefix=self._prefix) as queue:
                await self._let_finish(queue)
                return await self._report(queue)
        finally:
            self._fleet.end()

    async def _let_finish(self, queue: Queue) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEFT_TO_FINISH):
                while True:
                    counts = await queue.get_job_counts()
                    if counts.completed + counts.failed >= len(self.books.added) and not counts.active:
                        return
                    await asyncio.sleep(0.1)

    async def _report(self, queue: Queue) -> dict[str, Any]:
        books = self.books
        lost, stalled = [], 0
        with self._server.client() as client:
            runs = self._fleet.runs(client)
            for job_id in books.added:
                if await queue.get_job_state(job_id) not in FINAL:
                    lost.append(job_id)
                stalled += int(client.hget(queue.keys.job(job_id), "stc") or 0)
        known = [runs[job_id] - wanted for job_id, wanted in books.added.items()]
        return {
            "acknowledged": len(books.added),
            "refused": books.refused,
            "lost": len(lost),
            "repeated": sum(max(0, extra) for extra in known),
            "explained": books.explained,
            "stalled": stalled,
            "bad_exits": books.bad_exits,
            "faults": dict(books.faults),
        }


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=int(time.time()))
    options.add_argument("--rate", type=float, default=100.0, help="jobs a second")
    given = options.parse_args()
    print(f"{given.minutes:g} minutes, seed {given.seed}", flush=True)
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with Server.valkey(**settings) as server, Proxy(server.port) as proxy:
        report = asyncio.run(Soak(server, proxy, seed=given.seed, rate=given.rate).run(given.minutes))
    print(json.dumps(report, indent=2))
    return (
        0
        if report["lost"] == 0 and report["repeated"] <= report["explained"] and not report["bad_exits"]
        else 1
    )


if __name__ == "__main__":
    sys.exit(main())
