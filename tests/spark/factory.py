"""A small factory that moves jobs through their lives by the real scripts, and keeps its own count of what happened.

It is the independent witness of the pipeline's tests: it knows every attempt because it made it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

from toril.commands.add import JobToAdd, add_jobs
from toril.commands.locks import official_sweep, report_worker
from toril.commands.manage import set_meta
from toril.commands.worker import Pickup, Settlement, finish_options, packed_fields, settle
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

TOKEN = "token-of-the-factory"


@dataclass
class Factory:
    """One queue, its jobs, and the truth about their attempts."""

    url: str
    queue: str
    prefix: str
    events_max_len: int = 1_000_000
    seed: int = 7
    outcomes: Counter[str] = field(default_factory=Counter)
    attempts: Counter[str] = field(default_factory=Counter)
    added: int = 0

    def __post_init__(self) -> None:
        self.transport = BlockingTransport(self.url)
        self.keys = QueueKeys(self.queue, self.prefix).resolve(cluster=self.transport.is_cluster)
        self.random = random.Random(self.seed)
        self.pickup = Pickup(token=TOKEN, lock_ms=60_000, worker="factory-1")
        self.transport.run_many(
            set_meta(self.keys, version="bullmq:5.62.0", events_max_len=self.events_max_len)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()

    def add(self, count: int, *, attempts: int = 3, prefix: str = "job", **options: object) -> list[str]:
        """Adds jobs and returns their ids."""
        ids = [f"{prefix}-{self.added + n}" for n in range(count)]
        self.added += count
        for start in range(0, count, 500):
            jobs = [
                JobToAdd(
                    name=f"kind-{number % 3}",
                    data=b'{"n":%d}' % number,
                    options={"attempts": attempts, **options},
                    timestamp=self.transport.now_ms(),
                    id=job_id,
                )
                for number, job_id in enumerate(ids[start : start + 500])
            ]
            self.transport.run(add_jobs(self.keys, jobs))
        return ids

    def work(
        self, *, batch: int = 50, fail: float = 0.0, retry: float = 0.0, limit: int | None = None
    ) -> int:
        """Takes and settles jobs until none is waiting; a share of them fails or is retried once."""
        done = 0
        settlements: list[Settlement] = []
        while limit is None or done < limit:
            take = batch if limit is None else min(batch, limit - done)
            reply = self._settle(settlements, take)
            if not reply:
                return done
            settlements = [self._outcome(job_id, fail, retry) for job_id in reply]
            done += len(reply)
        self._settle(settlements, 0)
        return done

    def take(self, count: int) -> list[str]:
        """Takes jobs and leaves them active."""
        taken = self._settle([], count)
        self.attempts.update(taken)
        return taken

    def complete(self, ids: list[str]) -> None:
        """Completes jobs that were taken."""
        for _ in ids:
            self.outcomes["completed"] += 1
        self._settle([self._completed(job_id) for job_id in ids], 0)

    def let_stall(self, ids: list[str], *, max_stalled: int = 5) -> None:
        """Lets the locks of active jobs vanish and sweeps them back, as if their worker had died."""
        for job_id in ids:
            self.transport.run(_delete(self.keys.lock(job_id)))
        for _ in range(2):  # the first sweep marks, the second one moves
            self.transport.run(_delete(self.keys.stalled_check))
            command = official_sweep(
                self.keys, max_stalled=max_stalled, now_ms=self.transport.now_ms(), interval_ms=1
            )
            self.transport.run(command)
        self.outcomes["stalled"] += len(ids)

    def _settle(self, settlements: list[Settlement], take: int) -> list[str]:
        command = settle(
            self.keys, settlements, capacity=take, pickup=self.pickup, now_ms=self.transport.now_ms()
        )
        reply = self.transport.run(command)
        problems = [one for one in reply.ack_errors if one is not None]
        assert not problems, problems
        return [job_id for job_id, _ in reply.jobs]

    def _outcome(self, job_id: str, fail: float, retry: float) -> Settlement:
        self.attempts[job_id] += 1
        chance = self.random.random()
        if chance < fail:
            self.outcomes["failed"] += 1
            reason = f"order {self.random.randrange(1000)} not found"
            fields = packed_fields({"failedReason": reason, "stacktrace": f'["Error: {reason}"]'})
            return self._settlement(job_id, "failed", reason, self._options(1), fields)
        if chance < fail + retry and self.attempts[job_id] == 1:
            self.outcomes["retried"] += 1
            fields = packed_fields({"failedReason": "busy", "stacktrace": '["Error: busy"]'})
            return self._settlement(job_id, "retry", "LPUSH", b"", fields)
        self.outcomes["completed"] += 1
        return self._completed(job_id)

    def _completed(self, job_id: str) -> Settlement:
        return self._settlement(job_id, "completed", '{"ok":true}', self._options(1))

    def _settlement(
        self, job_id: str, kind: Any, value: str, options: bytes, fields: bytes = b""
    ) -> Settlement:
        return Settlement(job_id=job_id, kind=kind, token=TOKEN, value=value, options=options, fields=fields)

    def _options(self, attempts: int) -> bytes:
        return finish_options(pickup=self.pickup, token=TOKEN, keep={"count": -1}, attempts=attempts)

    def report(self, worker: str, **words: int) -> None:
        """Says what a worker says of itself at each heartbeat."""
        now = self.transport.now_ms()
        calm = {"jobs": 2, "heartbeats_ok": 80, "sweeps_done": 10, "sweeps_skipped": 0, "memory": 1000}
        said = json.dumps({"at": now, **calm, **words}).encode()
        self.transport.run_many(report_worker(self.keys, worker, said, now_ms=now, expire_ms=3_600_000))

    def forget(self) -> None:
        """Deletes all keys of the prefix."""
        from toril.commands.command import plain

        for key in self.transport.run(plain(list, "KEYS", f"{self.prefix}:*")):
            self.transport.run(_delete(key))

    @property
    def entries_added(self) -> int:
        """How many events the stream ever had."""
        from toril.commands.streams import stream_state

        return self.transport.run(stream_state(self.keys.events)).added or 0


def _delete(key: str) -> Any:
    from toril.commands.command import plain

    return plain(int, "DEL", key)
