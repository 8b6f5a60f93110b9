"""The same work done twice: by upstream's scripts one at a time, and by our batches.

Both sides take the same settlements, pickups and sweeps and give the same kind of answer, so a test can compare what
they say and what they leave in the keyspace. `OneByOne` is the reference: it runs nothing but official scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import redis

from tests.interop.draining import drain_all
from toril.commands import add, cleaning, locks, manage, worker
from toril.commands.add import JobToAdd
from toril.commands.command import Command, Replay, call
from toril.commands.library import official
from toril.commands.worker import SCRIPTS, FetchReply, Pickup, Settlement
from toril.errors import ScriptFailed, TorilError, refusal
from toril.protocol.codec import pack
from toril.protocol.keys import QueueKeys

SWEEP_MS = 30_000


class Side(Protocol):
    client: redis.Redis

    def add(self, jobs: Sequence[JobToAdd]) -> list[str | TorilError]: ...

    def settle(
        self, settlements: Sequence[Settlement], take: int, pickup: Pickup, now_ms: int
    ) -> FetchReply: ...

    def sweep(self, *, max_stalled: int, now_ms: int) -> list[str]: ...

    def extend(self, held: Sequence[tuple[str, str]], lock_ms: int) -> list[str]: ...

    def pause(self, paused: bool) -> None: ...

    def drain(self, delayed: bool) -> None: ...


def run(client: redis.Redis, command: Command[Any]) -> Any:
    """Runs a command on a plain client: what the store would send, without the store's rules."""
    send: Callable[..., Any] = client.execute_command
    try:
        reply = send(*command.evalsha())
    except redis.exceptions.NoScriptError:
        reply = send(*command.eval())
    return command.decode(reply)


class Batched:
    """Our scripts: one call for each batch."""

    def __init__(self, client: redis.Redis, keys: QueueKeys, *, suspects_a_step: int = 3) -> None:
        self.client = client
        self.keys = keys
        self._suspects_a_step = suspects_a_step

    def add(self, jobs: Sequence[JobToAdd]) -> list[str | TorilError]:
        added: list[add.Added] = run(self.client, add.add_jobs(self.keys, jobs))
        return [one.id if isinstance(one, add.Existing) else one for one in added]

    def settle(self, settlements: Sequence[Settlement], take: int, pickup: Pickup, now_ms: int) -> FetchReply:
        # As a worker sends them, options that say nothing special are left out; but not in every batch.
        words = [_shortened(one) for one in settlements] if len(settlements) % 3 else settlements
        command = worker.settle(self.keys, words, capacity=take, pickup=pickup, now_ms=now_ms)
        fetch_reply: FetchReply = run(self.client, command)
        return fetch_reply

    def sweep(self, *, max_stalled: int, now_ms: int) -> list[str]:
        left = run(self.client, locks.sweep_begin(self.keys, now_ms=now_ms, interval_ms=SWEEP_MS))
        moved: list[str] = []
        while left > 0:
            step = locks.sweep_step(self.keys, max_stalled=max_stalled, suspects=self._suspects_a_step)
            ids, left = run(self.client, step)
            moved += ids
        return moved

    def extend(self, held: Sequence[tuple[str, str]], lock_ms: int) -> list[str]:
        lost: list[str] = run(self.client, locks.extend_locks(self.keys, held, lock_ms=lock_ms))
        return lost

    def pause(self, paused: bool) -> None:
        run(self.client, manage.pause(self.keys) if paused else manage.resume(self.keys))

    def drain(self, delayed: bool) -> None:
        drain_all(lambda command: run(self.client, command), self.keys, delayed=delayed, most=2)


def _shortened(one: Settlement) -> Settlement:
    if one.kind != "completed" or not one.options:
        return one
    assert isinstance(one.options, bytes)
    options = msgspec.msgpack.decode(one.options)
    special = options["keepJobs"] != {"count": -1} or options["maxMetricsSize"] or options.get("limiter")
    return one if special else one._replace(options="")


class OneByOne:
    """Upstream's scripts: one call for each job."""

    def __init__(self, client: redis.Redis, keys: QueueKeys) -> None:
        self.client = client
        self.keys = keys

    def add(self, jobs: Sequence[JobToAdd]) -> list[str | TorilError]:
        return [self._add(job) for job in jobs]

    def _add(self, job: JobToAdd) -> str | TorilError:
        try:
            added: str = run(self.client, add.add_job(self.keys, job))
        except TorilError as error:
            return error
        except redis.ResponseError as error:
            return ScriptFailed(f"add: {error}")
        return added

    def settle(self, settlements: Sequence[Settlement], take: int, pickup: Pickup, now_ms: int) -> FetchReply:
        basket = _Basket(take)
        ack_errors = [self._settle_one(one, basket, pickup, now_ms) for one in settlements]
        while basket.open:
            try:
                basket.put(run(self.client, _raw(worker.fetch_one(self.keys, pickup=pickup, now_ms=now_ms))))
            except redis.ResponseError as error:
                basket.refused = str(error)
                basket.open = False
        return FetchReply(ack_errors, basket.jobs, basket.limited_ms, basket.next_at_ms, basket.refused)

    def _settle_one(self, one: Settlement, basket: _Basket, pickup: Pickup, now_ms: int) -> TorilError | None:
        command = settle_one(self.keys, one, now_ms=now_ms, fetch=basket.open)
        try:
            reply = run(self.client, command)
        except redis.ResponseError as error:
            return ScriptFailed(f"settle {one.kind}: {error}")
        if isinstance(reply, list):
            basket.put(reply)
            self._relock(reply, one, pickup)
            return None
        if reply == 0 and one.kind in ("completed", "failed"):
            basket.open = False
        return refusal(reply, job_id=one.job_id, command=SCRIPTS[one.kind]) if reply < 0 else None

    def _relock(self, reply: list[Any], one: Settlement, pickup: Pickup) -> None:
        """Upstream's worker goes on with the predecessor's token; ours holds all jobs of a call under one."""
        if reply[1] and one.token != pickup.token:
            self.client.set(self.keys.lock(reply[1].decode()), pickup.token, px=pickup.lock_ms)

    def sweep(self, *, max_stalled: int, now_ms: int) -> list[str]:
        command = locks.official_sweep(
            self.keys, max_stalled=max_stalled, now_ms=now_ms, interval_ms=SWEEP_MS
        )
        moved: list[str] = run(self.client, command)
        return moved

    def extend(self, held: Sequence[tuple[str, str]], lock_ms: int) -> list[str]:
        ids, tokens = [job_id for job_id, _ in held], [token for _, token in held]
        words: list[str | bytes | int | float] = [self.keys.base, pack(tokens), pack(ids), lock_ms]
        command = call(official("extendLocks"), (self.keys.stalled,), words, _ids, Replay.SAFE)
        lost: list[str] = run(self.client, command)
        return lost

    def pause(self, paused: bool) -> None:
        ours = manage.pause(self.keys) if paused else manage.resume(self.keys)
        run(self.client, _raw_call("pause", tuple(ours.keys[:7]), list(ours.args[:1])))

    def drain(self, delayed: bool) -> None:
        run(self.client, cleaning.official_drain(self.keys, delayed=delayed))


class _Basket:
    """What was taken so far; closed when it is full or the queue had nothing to give."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.open = capacity > 0
        self.jobs: list[tuple[str, list[bytes]]] = []
        self.limited_ms = 0
        self.next_at_ms = 0
        self.refused = ""

    def put(self, reply: list[Any]) -> None:
        fields, job_id, limited, next_at = reply
        if job_id:
            self.jobs.append((job_id.decode(), fields))
            self.open = len(self.jobs) < self.capacity
        else:
            self.limited_ms, self.next_at_ms = int(limited or 0), int(next_at or 0)
            self.open = False


def _raw(command: Command[Any]) -> Command[Any]:
    return Command(command.args, lambda reply: reply, command.script, command.keys, command.replay)


def _ids(reply: list[bytes]) -> list[str]:
    return [one.decode() for one in reply]


def settle_one(keys: QueueKeys, one: Settlement, *, now_ms: int, fetch: bool = False) -> Command[Any]:
    """One settlement by the official script of its kind, on the keys and words that Node sends."""
    match one.kind:
        case "completed" | "failed":
            return _finish(keys, one, now_ms, fetch)
        case "delayed":
            return _raw_call(
                "moveToDelayed",
                (keys.marker, keys.active, keys.prioritized, keys.delayed, keys.job(one.job_id), keys.events,
                 keys.meta, keys.stalled),
                [keys.base, now_ms, one.job_id, one.token, one.value, one.options, one.fields],
            )  # fmt: skip
        case "retry":
            return _raw_call(
                "retryJob",
                (keys.active, keys.wait, keys.paused, keys.job(one.job_id), keys.meta, keys.events, keys.delayed,
                 keys.prioritized, keys.pc, keys.marker, keys.stalled),
                [keys.base, now_ms, one.value, one.job_id, one.token, one.fields],
            )  # fmt: skip
        case "wait":
            return _raw_call(
                "moveJobFromActiveToWait",
                (keys.active, keys.wait, keys.stalled, keys.paused, keys.meta, keys.limiter, keys.prioritized,
                 keys.marker, keys.events),
                [one.job_id, one.token, keys.job(one.job_id)],
            )  # fmt: skip


def _finish(keys: QueueKeys, one: Settlement, now_ms: int, fetch: bool) -> Command[Any]:
    done = one.kind == "completed"
    return _raw_call(
        "moveToFinished",
        (keys.wait, keys.active, keys.prioritized, keys.events, keys.stalled, keys.limiter, keys.delayed,
         keys.paused, keys.meta, keys.pc, keys.completed if done else keys.failed, keys.job(one.job_id),
         keys.metrics("completed" if done else "failed"), keys.marker),
        [one.job_id, now_ms, "returnvalue" if done else "failedReason", one.value, one.kind,
         1 if fetch else 0, keys.base, one.options, one.fields],
    )  # fmt: skip


def _raw_call(name: str, keys: tuple[str, ...], words: list[Any]) -> Command[Any]:
    return call(official(name), keys, words, lambda reply: reply)
