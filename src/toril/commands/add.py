"""Adding jobs: one by an official script, a batch under a ledger, and flows.

Guarantee: the reply to a batch has one entry per job, which distinguishes added from existing jobs; a flow is added
whole or not at all; repeating a call under the same ledger entry adds nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from toril.commands.command import Arg, Command, Replay, Reply, call
from toril.commands.library import official
from toril.commands.own_script import OwnScript
from toril.errors import (
    ChildrenDeduplicated,
    ParentDeduplicated,
    RedisOutOfMemory,
    ScriptFailed,
    TorilError,
    refusal,
)
from toril.protocol.codec import pack
from toril.protocol.json_types import JsonFields
from toril.protocol.keys import QueueKeys

# Long enough for a producer to reconnect and send a call again; the ledger is one small key per producer.
LEDGER_MS: Final = 120_000

# The keys that adding a job may touch, as the scripts name them; `id_counter` is the key `id`.
ADD_KEYS: Final = (
    "wait paused meta id_counter completed delayed active events marker prioritized pc waiting_children"
)
_ADD_JOBS = OwnScript(
    "add_jobs",
    keys=f"{ADD_KEYS} ledger",
    args="sequence ledger_ms",
    each="kind arguments data options",
)
_ADD_FLOW = OwnScript(
    "add_flow",
    keys="ledger",
    each_keys=ADD_KEYS,
    args="sequence ledger_ms",
    each="queue kind arguments data options",
)


@dataclass(frozen=True, slots=True)
class Existing:
    """A job was not added because the job with this id exists. `hash` is empty when that job was removed meanwhile."""

    id: str
    hash: Sequence[bytes]  # field, value, …


Added = str | Existing | TorilError
"""The reply to one job: its id when it was added, the job that existed, or the error."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Identifies one call of one producer, by the producer's key and the number of the call."""

    key: str
    sequence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobToAdd:
    """A job in the form the scripts take it: JSON data, options under BullMQ's names."""

    name: str
    data: bytes
    options: JsonFields
    timestamp: int  # ms
    id: str = ""  # empty: the queue's counter is used
    parent: JsonFields | None = None  # {"id", "queueKey", and the failure flags}
    parent_key: str | None = None
    repeat_key: str | None = None
    waits_for_children: bool = False
    packed: bytes | None = None  # the options as msgpack, if they have been packed before

    @property
    def packed_options(self) -> bytes:
        return self.packed if self.packed is not None else pack(self.options)

    @property
    def kind(self) -> str:
        """Which script adds it, decided as upstream does; a job of a group gets its priority in the script."""
        if self.waits_for_children:
            return "parent"
        if "group" in self.options:
            return "grouped"
        if (self.options.get("delay") or 0) > 0:
            return "delayed"
        if self.options.get("priority"):
            return "prioritized"
        return "standard"


def packed_arguments(keys: QueueKeys, job: JobToAdd) -> bytes:
    """The packed arguments that every script that adds a job takes."""
    deduplication = job.options.get("de")
    return pack(
        [
            keys.base,
            job.id,
            job.name,
            job.timestamp,
            job.parent_key,
            f"{job.parent_key}:dependencies" if job.parent_key else None,
            job.parent,
            job.repeat_key,
            f"{keys.de}:{deduplication['id']}" if deduplication else None,
        ]
    )


def _script_keys(keys: QueueKeys, kind: str) -> tuple[str, tuple[str, ...]]:
    match kind:
        case "parent":
            return "addParentJob", (
                keys.meta,
                keys.id,
                keys.delayed,
                keys.waiting_children,
                keys.completed,
                keys.events,
            )
        case "delayed":
            return "addDelayedJob", (
                keys.marker,
                keys.meta,
                keys.id,
                keys.delayed,
                keys.completed,
                keys.events,
            )
        case "prioritized":
            return "addPrioritizedJob", (
                keys.marker,
                keys.meta,
                keys.id,
                keys.prioritized,
                keys.delayed,
                keys.completed,
                keys.active,
                keys.events,
                keys.pc,
            )
        case _:
            return "addStandardJob", (
                keys.wait,
                keys.paused,
                keys.meta,
                keys.id,
                keys.completed,
                keys.delayed,
                keys.active,
                keys.events,
                keys.marker,
            )


def add_job(keys: QueueKeys, job: JobToAdd) -> Command[str]:
    """Adds one job by its official script, as upstream does. Safe to repeat only when the client chose the id."""
    name, script_keys = _script_keys(keys, job.kind)
    args: list[Arg] = [packed_arguments(keys, job), job.data, job.packed_options]
    return call(
        official(name),
        script_keys,
        args,
        functools.partial(_added_or_raise, job),
        Replay.SAFE if job.id else Replay.NEVER,
    )


def add_jobs(keys: QueueKeys, jobs: Sequence[JobToAdd], ledger: Ledger | None = None) -> Command[list[Added]]:
    """Adds a batch in one call; returns one entry per job, in order."""
    args = _ADD_JOBS.args(sequence=ledger.sequence if ledger else "", ledger_ms=LEDGER_MS)
    for job in jobs:
        args += (job.kind, packed_arguments(keys, job), job.data, job.packed_options)
    return _ADD_JOBS.call(
        _add_keys(keys, ledger.key if ledger else keys.toril("ledger")),
        args,
        functools.partial(_added_each, jobs),
        Replay.SAFE if ledger else Replay.NEVER,
    )


@functools.lru_cache(maxsize=256)
def _add_keys(keys: QueueKeys, ledger: str) -> tuple[str, ...]:
    return _ADD_JOBS.keys(keys, id_counter=keys.id, ledger=ledger)


Flow = Sequence[tuple[QueueKeys, JobToAdd]]
"""The jobs of a flow with the keys of their queues, parents before their children."""


def add_flows(flows: Sequence[Flow], ledger: Ledger) -> Command[list[list[str | Existing] | TorilError]]:
    """Adds flows in one call; returns for each flow its jobs in order, or the error because of which none was added."""
    numbers = {
        keys: at for at, keys in enumerate(dict.fromkeys(keys for flow in flows for keys, _ in flow), 1)
    }
    args = _ADD_FLOW.args(sequence=ledger.sequence, ledger_ms=LEDGER_MS)
    for flow in flows:
        args.append(len(flow))
        for keys, job in flow:
            args += (numbers[keys], job.kind, packed_arguments(keys, job), job.data, job.packed_options)
    queues = [_ADD_FLOW.each_keys(keys, id_counter=keys.id) for keys in numbers]
    script_keys = (ledger.key, *(key for queue in queues for key in queue))
    return _ADD_FLOW.call(script_keys, args, functools.partial(_added_flows, flows), Replay.SAFE)


def _added_flows(flows: Sequence[Flow], reply: list[Reply]) -> list[list[str | Existing] | TorilError]:
    return [_added_flow(flow, one) for flow, one in zip(flows, reply, strict=True)]


def _added_flow(flow: Flow, reply: list[Reply]) -> list[str | Existing] | TorilError:
    if reply[0] == b"added":
        return [_stored(one) for one in reply[1]]
    _, place, code, detail = reply
    job = flow[place - 1][1]
    named, text = job.id or job.name, detail.decode(errors="replace")
    if not code:
        return ScriptFailed(f"add flow: job {named}: {text}")
    if code in (ParentDeduplicated.code, ChildrenDeduplicated.code):
        return ParentDeduplicated(named, text) if text else ChildrenDeduplicated(named)
    return refusal(code, job_id=named, command="add flow")


def _added_each(jobs: Sequence[JobToAdd], reply: list[Reply]) -> list[Added]:
    return [_added(job, one) for job, one in zip(jobs, reply, strict=True)]


def _added(job: JobToAdd, reply: Reply) -> Added:
    if isinstance(reply, bytes):
        return reply.decode()
    if isinstance(reply, int):
        return refusal(reply, job_id=job.id or job.name, command="add")
    if len(reply) > 1:
        return _stored(reply)
    text = reply[0].decode(errors="replace")
    return RedisOutOfMemory(text) if text.startswith("OOM") else ScriptFailed(f"add: {text}")


def _stored(reply: Reply) -> str | Existing:
    if isinstance(reply, bytes):
        return reply.decode()
    return Existing(reply[0].decode(), reply[1])


def _added_or_raise(job: JobToAdd, reply: Reply) -> str:
    """Returns the id: the official scripts do not distinguish added from existing jobs."""
    added = _added(job, reply)
    if isinstance(added, TorilError):
        raise added
    return added if isinstance(added, str) else added.id
