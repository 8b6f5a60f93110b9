"""Adding rows of a table as jobs, each row once under the ledger of its run.

Guarantee: sending a row again, in the same call or in another, adds nothing; a call that returns `Wait` or is refused
has added nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toril.commands.add import ADD_KEYS, JobToAdd, packed_arguments
from toril.commands.command import Arg, Command, Reply, plain
from toril.commands.envelopes import EnvelopeToAdd, jobs_key, kind_of
from toril.commands.own_script import OwnScript
from toril.errors import ScriptFailed, TorilError, refusal
from toril.protocol.keys import AnyKeys, QueueKeys, StreamKeys


@dataclass(frozen=True, slots=True)
class Reject:
    """A row that cannot become a job, with the reason."""

    reason: str
    row: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A job or a rejected row, with the digest under which the ledger records it.

    `first` is None for a row that is identified alone, whatever task sends it. For a row that is known by its content
    within a task it is the digest of the first equal row of the task, or empty for that first one.
    """

    digest: bytes
    job: JobToAdd | EnvelopeToAdd | Reject
    first: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The conditions under which rows are added."""

    run: str
    ledger_ms: int  # how long the ledger is kept
    max_waiting: int | None = None
    rate: float | None = None  # rows per second, over all tasks of the run
    known_by: str = "content"  # how rows are known; a run knows all its rows in one way
    save: str = "0"  # which of the writes under the run's name this is
    partition: int = 0  # of the task


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing was added: the queue is full, or the run exceeds its rate. Send the call again after `ms`."""

    ms: int
    waiting: int | None  # jobs in the queue, when it is full


@dataclass(frozen=True, slots=True)
class Moved:
    """Nothing was added: an earlier save entered one of the rows under another partition."""

    partition: int


@dataclass(frozen=True, slots=True)
class KnownDifferently:
    """Nothing was added: the run knows its rows in another way, so these cannot be compared with them."""

    known_by: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """For each row: True when it is new, False when it was known, or the error of the server.

    There are fewer entries than rows when the queue became full: the other rows were not processed.
    """

    rows: list[bool | TorilError]


EnqueueReply = Admitted | Wait | Moved | KnownDifferently


_FULL_PAUSE_MS = 250  # long enough for workers to fetch jobs, short enough that they do not run out


_ENQUEUE_ONCE = OwnScript(
    "enqueue_once",
    keys=f"{ADD_KEYS} ledger run_rate rejects",
    args="ledger_ms max_waiting rate known_by save partition consumer_group",
    each="digest first kind arguments data options",
)


def enqueue_once(keys: AnyKeys, rows: Sequence[Row], admission: Admission) -> Command[EnqueueReply]:
    """Adds the rows that the ledger of the run does not hold."""
    args = _ENQUEUE_ONCE.args(
        ledger_ms=admission.ledger_ms,
        max_waiting="" if admission.max_waiting is None else admission.max_waiting,
        rate="" if admission.rate is None else admission.rate,
        known_by=admission.known_by,
        save=admission.save,
        partition=admission.partition,
        consumer_group=keys.consumer_group if isinstance(keys, StreamKeys) else "",
    )
    for row in rows:
        args += (row.digest, "-" if row.first is None else row.first, *_job_args(keys, row.job))
    return _ENQUEUE_ONCE.call(_keys(keys, admission.run), args, _enqueue_reply)


def _job_args(keys: AnyKeys, job: JobToAdd | EnvelopeToAdd | Reject) -> tuple[Arg, Arg, Arg, Arg]:
    if isinstance(job, Reject):
        return "reject", job.reason, job.row, ""
    if isinstance(job, JobToAdd) and isinstance(keys, QueueKeys):
        return job.kind, packed_arguments(keys, job), job.data, job.packed_options
    if isinstance(job, EnvelopeToAdd) and not isinstance(keys, QueueKeys):
        return kind_of(keys), "" if job.due_ms is None else job.due_ms, job.text, ""
    raise TypeError(f"a {type(job).__name__} cannot be added to this kind of queue")


def ledger_key(keys: AnyKeys, run: str) -> str:
    return keys.toril(f"ledger:rows:{run}")


def rejects_key(keys: AnyKeys) -> str:
    return keys.toril("rejects")


def forget_run(keys: AnyKeys, run: str) -> Command[int]:
    """Removes the ledger of a run that can no longer be repeated."""
    return plain(int, "UNLINK", ledger_key(keys, run))


def _keys(keys: AnyKeys, run: str) -> tuple[str, ...]:
    given = {
        "ledger": ledger_key(keys, run),
        "run_rate": keys.toril(f"rate:run:{run}"),
        "rejects": rejects_key(keys),
    }
    if isinstance(keys, QueueKeys):
        return _ENQUEUE_ONCE.keys(keys, id_counter=keys.id, **given)
    given |= dict.fromkeys(ADD_KEYS.split(), jobs_key(keys)) | {"paused": keys.scheduled}
    return _ENQUEUE_ONCE.keys(keys, **given)


def _enqueue_reply(reply: list[Reply]) -> EnqueueReply:
    status, detail = reply
    match status:
        case b"full":
            return Wait(_FULL_PAUSE_MS, int(detail))
        case b"fast":
            return Wait(int(detail), None)
        case b"moved":
            return Moved(int(detail))
        case b"how":
            return KnownDifferently(detail.decode(errors="replace"))
        case _:
            return Admitted([_row_reply(one) for one in detail])


def _row_reply(reply: Reply) -> bool | TorilError:
    if isinstance(reply, int):
        return bool(reply) if reply >= 0 else refusal(reply, command="enqueue")
    return ScriptFailed(f"enqueue: {reply[0].decode(errors='replace')}")
