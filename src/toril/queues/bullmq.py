"""The BullMQ kind as a source: outcomes become settlements of the official scripts, job hashes become deliveries.

Guarantee: what Node would write for the same outcome is written, at least once and accepted once: a finish whose reply
was lost is handed in again, and one that had been accepted is recognised by the job's state.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from toril.commands import locks, manage, read, work
from toril.commands.work import Pickup, Settlement
from toril.contract.codec import to_json
from toril.contract.errors import (
    JobNotFound,
    JobNotInState,
    LockLost,
    MalformedValue,
    ReplyLost,
    ScriptRefused,
    StoreOutOfMemory,
    StoreUnavailable,
    TorilError,
)
from toril.contract.keys import QueueKeys, client_name
from toril.contract.outcome import (
    Completed,
    Failed,
    Outcome,
    Postponed,
    RateLimited,
    Requeued,
    Retry,
    WaitingForChildren,
)
from toril.contract.record import JobRecord
from toril.queues.series import Series
from toril.queues.source import Promise, Settled, Taken
from toril.store import AsyncStore, BlockingStore
from toril.store import Reader as StoreReader

# Bounds of one call: well under the time that other clients of the server notice.
LOCKS_PER_CALL = 1000
SUSPECTS_PER_STEP = 500
# The largest number that Lua holds exactly.
_MOST = 2**53
# A report outlives two missed heartbeats.
REPORT_LIVES = 3
# Packed options that are kept: jobs of a batch share their token and, as a rule, their options.
PACKED_KEPT = 64


class LockTokens:
    """UUIDs of version 4, from random bytes that are fetched for many at once: each fetch is a call to the system."""

    __slots__ = ("_at", "_bytes")

    STOCK = 256

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0

    def next(self) -> str:
        if self._at == len(self._bytes):
            self._bytes, self._at = os.urandom(16 * self.STOCK), 0
        start, self._at = self._at, self._at + 16
        return str(uuid.UUID(bytes=self._bytes[start : self._at], version=4))


class BullmqDelivery:
    """A job of ours: its hash and the token of our lock."""

    __slots__ = ("attempts_made", "id", "lock_lost", "record", "token")

    def __init__(self, record: JobRecord, token: str) -> None:
        self.id = record.id
        self.record = record
        self.token = token
        self.attempts_made = _made(record)
        self.lock_lost = False

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def max_attempts(self) -> int:
        return self.record.max_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class BullmqTerms:
    """How a worker takes and keeps jobs."""

    worker_id: str
    lock_ms: int
    stalled_ms: int
    max_stalled: int
    heartbeat: float  # seconds
    limiter: Mapping[str, int] | None = None
    keep_completed: Mapping[str, Any] | None = None  # for jobs that say nothing themselves
    keep_failed: Mapping[str, Any] | None = None
    metrics_size: int | None = None
    max_attempts: int | None = None
    events_max_len: int | None = None


class BullmqSource:
    """One BullMQ queue, seen by one worker."""

    kind = "bullmq"
    promise: Promise = "at least once"

    def __init__(
        self, keys: QueueKeys, store: AsyncStore, keeper_store: BlockingStore, terms: BullmqTerms
    ) -> None:
        self.keys = keys
        self.store = store
        self._keeper_store = keeper_store
        self._terms = terms
        self._reader: StoreReader | None = None
        self._tokens = LockTokens()
        self._packed: dict[tuple[str, str, bytes], bytes] = {}  # of finishes, by token, kind and options
        self._in_doubt: set[str] = set()  # finishes whose reply was lost
        self._lost_tokens: list[str] = []  # pickups whose reply was lost: their jobs are ours, unseen
        self._adopted: set[tuple[str, str]] = set()  # such jobs that are in hand by now, with their tokens
        self._called = False  # whether the last wait ended by a marker
        self._series = Series(keys, store)

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.store.connect()
        if self._terms.events_max_len is not None:
            version = "bullmq:5.62.0"
            await self.store.run_many(
                manage.set_meta(self.keys, version=version, events_max_len=self._terms.events_max_len)
            )
        if self._reader is None:
            self._reader = self.store.open_reader(
                name=client_name(self.keys, "worker", self._terms.worker_id)
            )
        # A worker that always finds work never waits, yet its name must stand in the list of connections.
        await self._reader.run(work.any_marker(self.keys), 0)

    async def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()
        await self.store.close()

    # --- settle and take ------------------------------------------------------------------------------------

    async def exchange(self, settled: Sequence[Settled], room: int) -> Taken:
        if self._series:
            # Before anything is settled: a series must not end with the job in hand.
            await self._series.go_on()
        adopted = await self._adopt(room) if self._lost_tokens and room else []
        try:
            return await self._exchange(settled, room, adopted)
        except BaseException:
            self._disown(adopted)
            raise

    async def _exchange(self, settled: Sequence[Settled], room: int, adopted: list[BullmqDelivery]) -> Taken:
        pause = await self._hold_rate(settled)
        pickup = self._new_pickup()
        settlements = [await self._settlement(one, pickup) for one in settled]
        call = work.settle(
            self.keys,
            [one for one in settlements if isinstance(one, Settlement)],
            take=0 if pause else room - len(adopted),
            pickup=pickup,
            now_ms=await self.store.now_ms(),
        )
        try:
            harvest = await self.store.run(call)
        except ReplyLost:
            self._doubt(settled, pickup)
            raise
        try:
            verdicts = await self._verdicts(settled, settlements, harvest.verdicts)
        except StoreUnavailable:
            # What had been accepted before could not be told. What was taken now is found again by its token.
            self._doubt(settled, pickup)
            raise
        self._let_go(settled)
        taken = self._taken(harvest, pickup.token, adopted, verdicts)
        if pause:
            taken = replace(taken, limited_for=pause)
        await self._series.begin(one.record for one in taken.deliveries)
        return taken

    def post(
        self, settled: Sequence[Settled], room: int, answer: Callable[[Taken | TorilError], None]
    ) -> bool:
        """`exchange` for ordinary outcomes on a connection that stands: no task, and the answer in the turn it comes.

        False, and nothing is done, when something must be asked or said first.
        """
        if self._series or self._lost_tokens or self._in_doubt or self.store.clock.stale:
            return False
        pickup = self._new_pickup()
        words = [self._plain_settlement(one.delivery, one.outcome, pickup) for one in settled]
        settlements = [one for one in words if isinstance(one, Settlement)]
        if len(settlements) < len(settled):
            return False
        now = self.store.clock.now_ms()
        call = work.settle(self.keys, settlements, take=room, pickup=pickup, now_ms=now)

        def harvested(harvest: work.Harvest | TorilError) -> None:
            if isinstance(harvest, TorilError):
                if isinstance(harvest, ReplyLost):
                    self._doubt(settled, pickup)
                return answer(harvest)
            self._let_go(settled)
            taken = self._taken(harvest, pickup.token, [], harvest.verdicts)
            self._series.plan(one.record for one in taken.deliveries)
            self._series.post()
            return answer(taken)

        return self.store.post(call, harvested)

    def _new_pickup(self) -> Pickup:
        return Pickup(
            token=self._tokens.next(),
            lock_ms=self._terms.lock_ms,
            worker=self._terms.worker_id,
            limiter=self._terms.limiter,
        )

    def _doubt(self, settled: Sequence[Settled], pickup: Pickup) -> None:
        """The reply was lost: we know neither what was accepted nor what was taken."""
        self._in_doubt.update(one.delivery.id for one in settled)
        self._lost_tokens.append(pickup.token)

    def _taken(
        self,
        harvest: work.Harvest,
        token: str,
        adopted: list[BullmqDelivery],
        verdicts: list[TorilError | None],
    ) -> Taken:
        fresh = [BullmqDelivery(JobRecord.from_flat(job_id, flat), token) for job_id, flat in harvest.jobs]
        due = harvest.next_at_ms
        return Taken(
            deliveries=[*adopted, *fresh],
            verdicts=verdicts,
            limited_for=harvest.limited_ms / 1000,
            next_due_in=(due - self.store.clock.now_ms()) / 1000 if due else None,
            refused=_refused(harvest.refused) if harvest.refused else None,
        )

    async def _settlement(self, one: Settled, pickup: Pickup) -> Settlement | TorilError | None:
        """The words of an outcome; None for what a script of its own has settled, an error for what it refused."""
        words = self._plain_settlement(one.delivery, one.outcome, pickup)
        if words is not None:
            return words
        if isinstance(one.outcome, WaitingForChildren):
            return await self._park(one.delivery)
        return self._words(one.delivery, "wait")

    def _plain_settlement(
        self, delivery: BullmqDelivery, outcome: Outcome, pickup: Pickup
    ) -> Settlement | None:
        """The words of an outcome that needs nothing but words."""
        match outcome:
            case Completed():
                return self._finish(delivery, pickup, "completed", outcome.value, b"")
            case Failed():
                fields = _failure_fields(delivery.record, outcome)
                return self._finish(delivery, pickup, "failed", outcome.reason, fields)
            case Retry():
                return self._retry(delivery, outcome)
            case Postponed():
                return self._words(delivery, "delayed", value=_ms(outcome.delay), options="1")
            case Requeued():
                return self._words(delivery, "wait")
            case RateLimited() | WaitingForChildren():
                return None
            case _:
                assert_never(outcome)

    def _words(self, delivery: BullmqDelivery, kind: work.SettlementKind, **parts: Any) -> Settlement:
        return Settlement(job_id=delivery.id, kind=kind, token=delivery.token, **parts)

    def _finish(
        self,
        delivery: BullmqDelivery,
        pickup: Pickup,
        kind: work.SettlementKind,
        value: bytes | str,
        fields: bytes,
    ) -> Settlement:
        alike = delivery.token, kind, delivery.record.fields.get(b"opts", b"")
        options = self._packed.get(alike)
        if options is None:
            if len(self._packed) >= PACKED_KEPT:
                self._packed.clear()
            options = self._packed[alike] = self._finish_options(delivery, pickup, kind)
        return Settlement(
            job_id=delivery.id, kind=kind, token=delivery.token, value=value, options=options, fields=fields
        )

    def _finish_options(self, delivery: BullmqDelivery, pickup: Pickup, kind: work.SettlementKind) -> bytes:
        terms = self._terms
        opts = _opts(delivery.record)
        own, fallback = (
            ("removeOnComplete", terms.keep_completed)
            if kind == "completed"
            else ("removeOnFail", terms.keep_failed)
        )
        return work.finish_options(
            pickup=pickup,
            token=delivery.token,
            keep=_keep(opts.get(own), fallback),
            attempts=_attempts(opts, terms.max_attempts),
            metrics_size=terms.metrics_size,
            parent_flags={flag: bool(opts.get(flag)) for flag in ("fpof", "cpof", "idof", "rdof")},
        )

    def _retry(self, delivery: BullmqDelivery, outcome: Retry) -> Settlement:
        fields = _failure_fields(delivery.record, outcome)
        delay = _ms(outcome.delay)
        if delay > 0:
            return self._words(delivery, "delayed", value=delay, options="0", fields=fields)
        push = "RPUSH" if _opts(delivery.record).get("lifo") else "LPUSH"
        return self._words(delivery, "retry", value=push, fields=fields)

    async def _park(self, delivery: BullmqDelivery) -> Settlement | TorilError | None:
        """Waits for children if any is pending; else the job goes on at once."""
        now = await self.store.now_ms()
        call = work.move_to_waiting_children(self.keys, delivery.id, token=delivery.token, now_ms=now)
        try:
            parked = await self.store.run(call)
        except ScriptRefused as refused:
            return refused
        finally:
            # Should the rest of the exchange fail, this job is parked once more and refused.
            self._in_doubt.add(delivery.id)
        return None if parked else self._words(delivery, "wait")

    async def _hold_rate(self, settled: Sequence[Settled]) -> float:
        """Closes the queue to workers with a rate limit, as upstream does; without one, only this worker pauses."""
        spans = [one.outcome.delay for one in settled if isinstance(one.outcome, RateLimited)]
        if not spans:
            return 0.0
        longest = max((span for span in spans if span is not None), default=0.0)
        if longest > 0:
            await self.store.run(manage.hold_rate(self.keys, max(1, _ms(longest))))
        if self._terms.limiter is not None:
            return 0.0
        # Without a time of its own, the error means the hold that is set already.
        return longest or max(0, await self.store.run(read.get_held_ms(self.keys))) / 1000

    # --- doubt ----------------------------------------------------------------------------------------------

    async def _verdicts(
        self,
        settled: Sequence[Settled],
        settlements: Sequence[Settlement | TorilError | None],
        answers: Sequence[TorilError | None],
    ) -> list[TorilError | None]:
        remaining = iter(answers)
        verdicts = [next(remaining) if isinstance(words, Settlement) else words for words in settlements]
        if self._in_doubt:
            for i, (one, verdict) in enumerate(zip(settled, verdicts, strict=True)):
                if one.delivery.id in self._in_doubt:
                    self._in_doubt.discard(one.delivery.id)
                    if verdict is not None and await self._had_been_accepted(one, verdict):
                        verdicts[i] = None
        return verdicts

    async def _had_been_accepted(self, one: Settled, refused: TorilError) -> bool:
        """Whether the first try of a finish, whose reply was lost, did its work after all."""
        if not isinstance(refused, (LockLost, JobNotFound, JobNotInState)):
            return False
        finished = await self.store.run(read.is_finished(self.keys, one.delivery.id))
        match one.outcome:
            case Completed():
                return finished.state in ("completed", "missing")
            case Failed():
                return finished.state in ("failed", "missing")
            case _:
                return await self.store.run(read.get_state(self.keys, one.delivery.id)) != "active"

    async def _adopt(self, room: int) -> list[BullmqDelivery]:
        """Jobs that a pickup took for us and whose names were lost with its reply: they carry our token."""
        tokens, self._lost_tokens = set(self._lost_tokens), []
        try:
            ids = await self.store.run(read.get_ranges(self.keys, ["active"]))
            owners = await self.store.run_many([read.get_lock(self.keys, one) for one in ids])
            held = zip(ids, owners, strict=True)
            mine = [one for one in held if one[1] in tokens and one not in self._adopted]
            flats = await self.store.run_many([read.get_job(self.keys, one) for one, _ in mine])
        except StoreUnavailable:
            self._lost_tokens.extend(tokens)
            raise
        found = [
            BullmqDelivery(JobRecord.from_flat(one, flat), str(owner))
            for (one, owner), flat in zip(mine, flats, strict=True)
            if not isinstance(flat, Exception)
        ]
        # What does not fit now is looked for again, until its lock runs out and it is recovered as stalled.
        self._lost_tokens.extend({one.token for one in found[room:]})
        self._adopted.update((one.id, one.token) for one in found[:room])
        return found[:room]

    def _disown(self, adopted: Sequence[BullmqDelivery]) -> None:
        """The exchange failed before they could be handed out: they are looked for again."""
        self._adopted.difference_update((one.id, one.token) for one in adopted)
        self._lost_tokens.extend({one.token for one in adopted})

    def _let_go(self, settled: Sequence[Settled]) -> None:
        if self._adopted:
            self._adopted.difference_update((one.delivery.id, one.delivery.token) for one in settled)

    # --- waiting --------------------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        if self._reader is None:
            return
        due_ms = await self._reader.run(work.wait_for_marker(self.keys, seconds), seconds)
        self._called = due_ms is not None
        if due_ms:
            await self._wait_until(due_ms, seconds)

    async def _wait_until(self, due_ms: float, seconds: float) -> None:
        """The marker told when a delayed job is due: until then, new markers may still come."""
        remaining = (due_ms - self.store.clock.now_ms()) / 1000
        if remaining > 0 and self._reader is not None:
            timeout = max(0.001, min(remaining, seconds))
            await self._reader.run(work.wait_for_marker(self.keys, timeout), timeout)

    async def wake(self) -> None:
        if self._reader is not None:
            await self._reader.unblock()

    async def decline(self) -> None:
        if self._called:  # we took the marker, and with it the only word of the work
            await self.store.run(work.set_marker(self.keys))

    # --- keeping and sweeping -------------------------------------------------------------------------------

    def keep_alive(self, deliveries: Sequence[BullmqDelivery]) -> list[BullmqDelivery]:
        # A job that we lost and took again is in hand twice: the older of the two has lost its lock for certain.
        newest = {one.id: one for one in deliveries}
        pairs = [(one.id, one.token) for one in newest.values()]
        lost: set[str] = set()
        for start in range(0, len(pairs), LOCKS_PER_CALL):
            part = pairs[start : start + LOCKS_PER_CALL]
            gone = self._keeper_store.run(locks.extend_locks(self.keys, part, lock_ms=self._terms.lock_ms))
            lost.update(gone)
        return [one for one in deliveries if one.id in lost or newest[one.id] is not one]

    def cancelled(self, deliveries: Sequence[BullmqDelivery]) -> list[tuple[BullmqDelivery, str]]:
        """Those of our jobs that somebody asked to stop, and why. Called from the keeper's thread."""
        words = self._keeper_store.run(read.get_cancellations(self.keys, [one.id for one in deliveries]))
        pairs = zip(deliveries, words, strict=True)
        # A word is for one attempt: whoever retries a job, or adds its id again, wants it to run.
        asked = [(one, word[1]) for one, word in pairs if word is not None and word[0] == one.token]
        self._keeper_store.run_many([manage.forget_cancel(self.keys, one.id) for one, _ in asked])
        return asked

    async def sweep(self) -> list[str] | None:
        terms, keys = self._terms, self.keys
        now = await self.store.now_ms()
        left = await self.store.run(locks.sweep_begin(keys, now_ms=now, interval_ms=terms.stalled_ms))
        if left < 0:
            return None
        moved: list[str] = []
        while left > 0:
            step = locks.sweep_step(keys, max_stalled=terms.max_stalled, suspects=SUSPECTS_PER_STEP)
            part, left = await self.store.run(step)
            moved += part
        return moved

    def report(self, figures: dict[str, Any]) -> None:
        life = max(1000, round(self._terms.heartbeat * REPORT_LIVES * 1000))
        now = self._keeper_store.now_ms()
        body = to_json({"worker": self._terms.worker_id, "at": now, **figures}, field="report")
        for answer in self._keeper_store.run_many(
            locks.report_worker(self.keys, self._terms.worker_id, body, now_ms=now, life_ms=life)
        ):
            if isinstance(answer, TorilError):
                raise answer


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _opts(record: JobRecord) -> Mapping[str, Any]:
    """A job whose options do not parse is finished like one without options."""
    try:
        return record.opts
    except MalformedValue:
        return {}


def _made(record: JobRecord) -> int:
    """A count that does not parse must not hold up the jobs that came with it: the script will bury the job."""
    try:
        return record.attempts_made
    except MalformedValue:
        return 0


def _attempts(opts: Mapping[str, Any], override: int | None) -> int:
    return override or max(0, _whole(opts.get("attempts")) or 0)


def _keep(own: Any, fallback: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Upstream's reading of removeOnComplete and removeOnFail; what it could not read keeps the job."""
    if own is None:
        return fallback or {"count": -1}
    if isinstance(own, bool):
        return {"count": 0 if own else -1}
    wanted = own if isinstance(own, Mapping) else {"count": own}
    limits = {name: _whole(value) for name, value in wanted.items() if name in ("count", "age")}
    return {name: value for name, value in limits.items() if value is not None} or {"count": -1}


def _whole(value: Any) -> int | None:
    """A number as the scripts can hold it; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(max(-_MOST, min(value, _MOST))) if value == value else None  # NaN differs from itself


def _failure_fields(record: JobRecord, outcome: Failed | Retry) -> bytes:
    """Reason and stack traces; as upstream, each attempt adds its trace, oldest first."""
    traces = [*record.stacktrace, outcome.stacktrace] if outcome.stacktrace else record.stacktrace
    limit = _opts(record).get("stackTraceLimit")
    if isinstance(limit, (int, float)) and limit >= 0:
        traces = traces[max(0, len(traces) - int(limit)) :]
    return work.packed_fields({"failedReason": outcome.reason, "stacktrace": to_json(traces).decode()})


def _refused(text: str) -> TorilError:
    return StoreOutOfMemory(text) if "OOM" in text else StoreUnavailable(text)
