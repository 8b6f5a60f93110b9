"""toril's commands as a side: the same steps through `toril.commands`, one method for each operation.

Two ways are compared with Node: `batched=False` uses the official scripts one by one wherever there is such a
command; `batched=True` uses toril's own batches and the bounded sweep.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from tests.interop.adapters import NO_RULES, QUEUE, Rules
from tests.interop.draining import drain_all
from tests.interop.spelling import options_of
from tests.interop.steps import Fetched, Outcome, Step
from tests.servers import Server
from toril.commands import add, cleaning, locks, manage
from toril.commands import worker as worker_commands
from toril.commands.add import JobToAdd
from toril.commands.command import Command
from toril.commands.worker import FetchReply, Pickup, Settlement
from toril.errors import ScriptRefused, TorilError
from toril.protocol.backoff import Backoff, next_delay
from toril.protocol.codec import to_json
from toril.protocol.keys import QueueKeys

LOCK_MS = 30_000
SWEEP_MS = 30_000
MAX_STALLED = 1
SUSPECTS_A_CALL = 2  # Small, so that a sweep takes several calls.
_PARENT_FLAGS = ("fpof", "cpof", "idof", "rdof")


@dataclass(frozen=True, slots=True)
class Picked:
    """A job as it was when it was picked up."""

    fields: Mapping[str, str]

    @property
    def opts(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.fields.get("opts", "{}"))
        return decoded

    @property
    def attempts_made(self) -> int:
        return int(self.fields.get("atm", "0"))

    @property
    def stacktrace(self) -> list[str]:
        decoded: list[str] = json.loads(self.fields.get("stacktrace", "[]"))
        return decoded


class CommandSide:
    """`toril.commands` on a server of its own."""

    def __init__(self, server: Server, *, batched: bool, rules: Rules = NO_RULES) -> None:
        self.name = "toril's batches" if batched else "toril's commands"
        self.client = server.client()
        self._batched = batched
        self._rules = rules
        self._keys = QueueKeys(QUEUE, hash_tag=False)
        self._picked: dict[str, Picked] = {}
        self._now = 0

    def set_clock(self, milliseconds: int) -> None:
        self._now = milliseconds

    def reset(self) -> None:
        self.client.flushall()
        self._picked.clear()
        for command in manage.set_meta(self._keys, version="bullmq:5.62.0"):
            self._run(command)

    def close(self) -> None:
        self.client.close()

    def can(self, op: str) -> bool:
        return hasattr(self, op) and (self._batched or op != "exchange")

    def do(self, step: Step) -> Outcome:
        try:
            return Outcome(getattr(self, step.op)(**renamed(step.args)))
        except ScriptRefused as refusal:
            return Outcome(refused=str(refusal.code) if step.op != "obliterate" and refusal.code else "no")
        except (
            redis.ResponseError
        ):  # upstream's `reprocessJob` raises for a child whose failure its parent ignores
            return Outcome(refused="no")

    def _run(self, command: Command[Any]) -> Any:
        reply: Any = self.client.execute_command(*command.eval())
        return command.decode(reply)

    # Adding

    def add(self, *, name: str, data: Any, opts: dict[str, Any]) -> str:
        return self.add_bulk(jobs=[{"name": name, "data": data, "opts": opts}])[0]

    def add_bulk(self, *, jobs: Sequence[Mapping[str, Any]]) -> list[str]:
        wanted = [self._job(**job) for job in jobs]
        if not self._batched:
            return [self._run(add.add_job(self._keys, job)) for job in wanted]
        return [_unless_error(one) for one in self._run(add.add_jobs(self._keys, wanted))]

    def _job(self, *, name: str, data: Any, opts: Mapping[str, Any]) -> JobToAdd:
        options = options_of(opts)
        return JobToAdd(
            name=name,
            data=to_json(data),
            options=options.to_wire(),
            timestamp=self._now,
            id=options.job_id or "",
            parent=options.parent_wire(),
            parent_key=options.parent.key if options.parent is not None else None,
        )

    # Working

    def pick_up(self, *, token: str, worker: str) -> dict[str, Any] | None:
        pickup = self._pickup(token, worker)
        if self._batched:
            command = worker_commands.settle(self._keys, [], capacity=1, pickup=pickup, now_ms=self._now)
        else:
            command = worker_commands.fetch_one(self._keys, pickup=pickup, now_ms=self._now)
        return self._take(self._run(command))

    def _pickup(self, token: str, worker: str | None) -> Pickup:
        return Pickup(token=token, lock_ms=LOCK_MS, worker=worker, limiter=self._rules.limiter)

    def _take(self, fetch_reply: FetchReply) -> dict[str, Any] | None:
        taken = self._take_all(fetch_reply)
        return taken[0] if taken else None

    def _take_all(self, fetch_reply: FetchReply) -> list[dict[str, Any]]:
        taken = []
        for job_id, flat in fetch_reply.jobs:
            words = [word.decode() for word in flat]
            fields = dict(zip(words[::2], words[1::2], strict=True))
            self._picked[job_id] = Picked(fields)
            taken.append(_taken(job_id, fields))
        return taken

    def complete(self, *, fetch_next: bool, worker: str, **end: Any) -> Any:
        return self._settle(self._completed(worker, **end), take=1 if fetch_next else 0, worker=worker)

    def fail(self, *, fetch_next: bool, worker: str, **end: Any) -> Any:
        settlement = self._failed(worker, **end)
        # Only a finish fetches in Node; a retry does not.
        capacity = 1 if fetch_next and settlement.kind == "failed" else 0
        return self._settle(settlement, take=capacity, worker=worker)

    def exchange(self, *, settle: Sequence[Mapping[str, Any]], take: int, token: str, worker: str) -> Any:
        """Several ends and several pickups in one call, as the pump of a worker makes it."""
        build: dict[str, Callable[..., Settlement]] = {"complete": self._completed, "fail": self._failed}
        ends = [build[end["op"]](worker, token=token, **renamed(end["args"])) for end in settle]
        pickup = self._pickup(token, worker)
        fetch_reply: FetchReply = self._run(
            worker_commands.settle(self._keys, ends, capacity=take, pickup=pickup, now_ms=self._now)
        )
        return {
            "refused": [_refusal(one) for one in fetch_reply.ack_errors],
            "taken": self._take_all(fetch_reply),
        }

    def _completed(self, worker: str, *, job_id: str, value: Any, token: str) -> Settlement:
        options = self._finish_options(self._hold(job_id), "removeOnComplete", token, worker)
        return Settlement(job_id=job_id, kind="completed", token=token, value=to_json(value), options=options)

    def _failed(self, worker: str, *, job_id: str, error: Mapping[str, str], token: str) -> Settlement:
        job = self._hold(job_id)
        fields = worker_commands.packed_fields(
            {"failedReason": error["message"], "stacktrace": _traces(job, error)}
        )
        delay = _retry_delay(job, error)
        if delay is None:
            value, options = error["message"], self._finish_options(job, "removeOnFail", token, worker)
            return Settlement(
                job_id=job_id, kind="failed", token=token, value=value, options=options, fields=fields
            )
        if delay > 0:
            return Settlement(
                job_id=job_id, kind="delayed", token=token, value=delay, options="0", fields=fields
            )
        push = "RPUSH" if job.opts.get("lifo") else "LPUSH"
        return Settlement(job_id=job_id, kind="retry", token=token, value=push, fields=fields)

    def give_back(self, *, job_id: str, token: str) -> None:
        self._hold(job_id)
        self._settle(Settlement(job_id=job_id, kind="wait", token=token))

    def postpone(self, *, job_id: str, token: str, until: int) -> None:
        self._hold(job_id)
        span = max(until - self._now, 0)
        self._settle(Settlement(job_id=job_id, kind="delayed", token=token, value=span, options="1"))

    def _hold(self, job_id: str) -> Picked:
        known = self._picked.pop(job_id, None)
        if known is not None:
            return known
        raw: Any = self.client.hgetall(self._keys.job(job_id))
        return Picked({name.decode(): value.decode() for name, value in raw.items()})

    def _settle(self, settlement: Settlement, *, take: int = 0, worker: str | None = None) -> Any:
        pickup = self._pickup(settlement.token, worker)
        command = worker_commands.settle(
            self._keys, [settlement], capacity=take, pickup=pickup, now_ms=self._now
        )
        fetch_reply: FetchReply = self._run(command)
        _unless_error(fetch_reply.ack_errors[0])
        return self._take(fetch_reply)

    def _finish_options(self, job: Picked, keep: str, token: str, worker: str) -> bytes:
        opts = job.opts
        kept = _keep(opts.get(keep))
        if keep == "removeOnComplete" and worker_commands.needs_no_options(kept, self._rules.metrics):
            return b""  # as our worker does
        return worker_commands.finish_options(
            pickup=self._pickup(token, worker),
            token=token,
            keep=kept,
            attempts=opts.get("attempts", 0),
            metrics_size=self._rules.metrics,
            parent_flags={flag: bool(opts.get(flag)) for flag in _PARENT_FLAGS},
        )

    def wait_for_children(self, *, job_id: str, token: str) -> bool:
        self._picked.pop(job_id, None)
        parked: bool = self._run(
            worker_commands.move_to_waiting_children(self._keys, job_id, token=token, now_ms=self._now)
        )
        return parked

    def extend_lock(self, *, job_id: str, token: str, duration: int) -> bool:
        if self._batched:
            return not self.extend_locks(ids=[job_id], tokens=[token], duration=duration)
        kept: bool = self._run(locks.extend_lock(self._keys, job_id, token, lock_ms=duration))
        return kept

    def extend_locks(self, *, ids: list[str], tokens: list[str], duration: int) -> list[str]:
        pairs = list(zip(ids, tokens, strict=True))
        return sorted(self._run(locks.extend_locks(self._keys, pairs, lock_ms=duration)))

    def sweep_stalled(self) -> list[str]:
        if not self._batched:
            return sorted(self._run(self._sweep_at_once()))
        left = self._run(locks.sweep_begin(self._keys, now_ms=self._now, interval_ms=SWEEP_MS))
        moved: list[str] = []
        while left > 0:
            step = locks.sweep_step(self._keys, max_stalled=MAX_STALLED, suspects=SUSPECTS_A_CALL)
            ids, left = self._run(step)
            moved += ids
        return sorted(moved)

    def requeue_left(self) -> None:
        beginning = self._keys.next_job("")
        found: Any = self.client.keys(f"{beginning}*")
        for key in found:
            deduplication_id = key.decode().removeprefix(beginning)
            self._run(manage.requeue_left(self._keys, deduplication_id, now_ms=self._now))

    def _sweep_at_once(self) -> Command[list[str]]:
        return locks.official_sweep(
            self._keys, max_stalled=MAX_STALLED, now_ms=self._now, interval_ms=SWEEP_MS
        )

    # Changing one job

    def update_progress(self, *, job_id: str, progress: Any) -> None:
        self._run(manage.update_progress(self._keys, job_id, to_json(progress)))

    def log(self, *, job_id: str, line: str, keep: int) -> int:
        count: int = self._run(manage.add_log(self._keys, job_id, line, keep=keep))
        return count

    def update_data(self, *, job_id: str, data: Any) -> None:
        self._run(manage.update_data(self._keys, job_id, to_json(data)))

    def promote(self, *, job_id: str) -> None:
        self._run(manage.promote(self._keys, job_id))

    def change_priority(self, *, job_id: str, priority: int, lifo: bool) -> None:
        self._run(manage.change_priority(self._keys, job_id, priority=priority, lifo=lifo))

    def change_delay(self, *, job_id: str, delay: int) -> None:
        self._run(manage.change_delay(self._keys, job_id, delay_ms=delay, now_ms=self._now))

    def retry(self, *, job_id: str, state: Any, reset: Mapping[str, bool] | None = None) -> None:
        lifo = bool(self._hold(job_id).opts.get("lifo"))
        wanted = manage.ResetAttempts(**reset or {})
        self._run(manage.reprocess(self._keys, job_id, state=state, lifo=lifo, reset=wanted))

    def remove_child_dependency(self, *, job_id: str) -> bool:
        parent: Any = self.client.hget(self._keys.job(job_id), "parentKey")
        removed: bool = self._run(manage.remove_child_dependency(self._keys, job_id, parent.decode()))
        return removed

    def remove_unprocessed_children(self, *, job_id: str) -> None:
        self._run(manage.remove_unprocessed_children(self._keys, job_id))

    def remove(self, *, job_id: str, children: bool) -> None:
        self._run(manage.remove(self._keys, job_id, children=children))

    # Changing the queue

    def pause(self) -> None:
        self._run(manage.pause(self._keys))

    def resume(self) -> None:
        self._run(manage.resume(self._keys))

    def drain(self, *, delayed: bool) -> None:
        # So few that most histories of a queue need several calls.
        drain_all(self._run, self._keys, delayed=delayed, most=3)

    def clean(self, *, grace: int, limit: int, state: Any) -> list[str]:
        most = limit or 10_000
        command = cleaning.clean(self._keys, state, before_ms=self._now - grace, limit=most)
        return sorted(self._run(command).removed)

    def obliterate(self, *, force: bool) -> None:
        self._run(manage.pause(self._keys))
        while self._run(manage.obliterate(self._keys, count=1000, force=force)):
            continue

    def retry_jobs(self, *, state: Any, count: int, before: int) -> None:
        while self._run(manage.move_jobs_to_wait(self._keys, state, count=count, until_ms=before)).more:
            continue

    def promote_jobs(self, *, count: int) -> None:
        while self._run(manage.move_jobs_to_wait(self._keys, "delayed", count=count)).more:
            continue

    def rate_limit(self, *, duration: int) -> None:
        self._run(manage.start_rate_limit(self._keys, duration))

    def set_concurrency(self, *, concurrency: int | None) -> None:
        self._run(manage.set_global_concurrency(self._keys, concurrency))

    def set_rate_limit(self, *, jobs: int | None, duration: int) -> None:
        self._run(manage.set_global_rate_limit(self._keys, None if jobs is None else (jobs, duration)))

    def remove_deduplication(self, *, job_id: str) -> bool:
        removed: bool = self._run(manage.remove_deduplication_key(self._keys, job_id))
        return removed


def renamed(args: Mapping[str, Any]) -> dict[str, Any]:
    """`id` is the driver's word for a job's id; in Python it is a builtin."""
    return {"job_id" if name == "id" else name: value for name, value in args.items()}


def _unless_error(answer: Any) -> Any:
    if isinstance(answer, TorilError):
        raise answer
    return answer.id if isinstance(answer, add.Existing) else answer


def _refusal(ack_error: TorilError | None) -> str | None:
    if ack_error is None:
        return None
    return str(ack_error.code) if isinstance(ack_error, ScriptRefused) else repr(ack_error)


def _taken(job_id: str, fields: Mapping[str, str]) -> dict[str, Any]:
    return Fetched(
        id=job_id,
        attempts_started=int(fields.get("ats", "0")),
        attempts_made=int(fields.get("atm", "0")),
        deferred_failure=fields.get("defa"),
    ).as_value()


def _keep(option: Any) -> Mapping[str, int]:
    match option:
        case dict():
            return option
        case bool() | None:
            return {"count": 0 if option else -1}
        case _:
            return {"count": option}


def _traces(job: Picked, error: Mapping[str, str]) -> str:
    traces = [*job.stacktrace, error["stack"]]
    limit = job.opts.get("stackTraceLimit")
    return json.dumps([] if limit == 0 else traces[-limit:] if limit else traces)


def _retry_delay(job: Picked, error: Mapping[str, str]) -> int | None:
    """Milliseconds to the next attempt, None for no further one."""
    made = job.attempts_made + 1
    if made >= job.opts.get("attempts", 0) or error["name"] == "UnrecoverableError":
        return None
    seconds = next_delay(made, Backoff.from_wire(job.opts.get("backoff")), jitter=0)
    return round((seconds or 0) * 1000)
