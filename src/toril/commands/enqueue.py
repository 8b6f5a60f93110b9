"""Adding rows of a table as jobs, each row once under the ledger of its run.

Guarantee: sending a row again, in the same call or in another, adds nothing; a call that is told to wait added nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.commands._command import Command, Replay, Word, call, plain
from toril.commands._library import own
from toril.commands.add import JobToAdd, _arguments, all_keys
from toril.commands.envelopes import EnvelopeToAdd, jobs_key, kind_of
from toril.contract.errors import ScriptFailed, TorilError, refusal
from toril.contract.keys import ListKeys, QueueKeys, StreamKeys

AnyKeys = QueueKeys | ListKeys | StreamKeys


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that is no job: why, and the row itself."""

    reason: str
    row: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A job or a rejected row under the digest by which the ledger knows it."""

    digest: bytes
    job: JobToAdd | EnvelopeToAdd | Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Under which conditions rows are let in."""

    run: str
    life_ms: int
    most_waiting: int | None = None
    rate: float | None = None  # rows per second, over all tasks of the run


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing was added: the queue is full, or the run is faster than its rate. Ask again after `ms`."""

    ms: int
    waiting: int | None  # jobs in the queue, when it is full


_FULL_PAUSE_MS = 250  # long enough for workers to make room, short enough to keep them busy


def enqueue_once(
    keys: AnyKeys, rows: Sequence[Row], admission: Admission
) -> Command[Wait | list[bool | TorilError]]:
    """For each row: True when it is new, False when it was known, or why the server refused it."""
    args: list[Word] = [
        admission.life_ms,
        "" if admission.most_waiting is None else admission.most_waiting,
        "" if admission.rate is None else admission.rate,
    ]
    for row in rows:
        args += (row.digest, *_words(keys, row.job))
    return call(own("enqueue_once"), _keys(keys, admission.run), args, _admitted, Replay.SAFE)


def _words(keys: AnyKeys, job: JobToAdd | EnvelopeToAdd | Reject) -> tuple[Word, Word, Word, Word]:
    if isinstance(job, Reject):
        return "reject", job.reason, job.row, ""
    if isinstance(job, JobToAdd):
        assert isinstance(keys, QueueKeys), "jobs go to BullMQ queues"  # noqa: S101
        return job.kind, _arguments(keys, job), job.data, job.packed_options
    assert not isinstance(keys, QueueKeys), "envelopes go to list and stream queues"  # noqa: S101
    return kind_of(keys), "" if job.due_ms is None else job.due_ms, job.text, ""


def ledger_key(keys: AnyKeys, run: str) -> str:
    return keys.toril(f"ledger:run:{run}")


def rejects_key(keys: AnyKeys) -> str:
    return keys.toril("rejects")


def forget_run(keys: AnyKeys, run: str) -> Command[int]:
    """Drops the ledger of a run that can no longer be repeated."""
    return plain(int, "UNLINK", ledger_key(keys, run))


def _keys(keys: AnyKeys, run: str) -> tuple[str, ...]:
    own_keys = (ledger_key(keys, run), keys.toril(f"rate:run:{run}"), rejects_key(keys))
    if isinstance(keys, QueueKeys):
        return (*all_keys(keys), *own_keys)
    return (jobs_key(keys), keys.scheduled, *([jobs_key(keys)] * 10), *own_keys)


def _admitted(reply: list[Any]) -> Wait | list[bool | TorilError]:
    word, detail = reply
    if word == b"full":
        return Wait(_FULL_PAUSE_MS, int(detail))
    if word == b"fast":
        return Wait(int(detail), None)
    return [_verdict(one) for one in detail]


def _verdict(reply: Any) -> bool | TorilError:
    if isinstance(reply, int):
        return bool(reply) if reply >= 0 else refusal(reply, command="enqueue")
    return ScriptFailed(f"enqueue: {reply[0].decode(errors='replace')}")
