"""Every error toril raises, in one tree.

    TorilError
    ├── InvalidOption (ValueError)        a value was refused before any I/O: .field .problem .remedy
    │   ├── NotSerializable                  the data has no JSON form
    │   ├── PayloadTooLarge                  data and options exceed the limit
    │   └── PayloadMismatch (PermanentError) the data does not fit the queue's payload model
    ├── TransientError                    worth another attempt: .retry_after
    │   └── JobTimedOut (TimeoutError)       the handler ran longer than it may
    ├── PermanentError                    another attempt would fail as well (alias UnrecoverableError)
    │   ├── MalformedValue                   a stored field does not parse: .field
    │   ├── MissingUser                      the user that the job works for does not exist
    │   ├── UnknownBackoff                   the job names a backoff that this worker does not have: .name
    │   └── JobCancelled                     somebody cancelled the job
    ├── HandlerSignal                     raised by a handler to steer its job; no attempt is counted
    │   ├── RateLimitError                   wait: the far side is busy: .delay
    │   ├── Postpone                         run me later: .delay (alias DelayedError)
    │   ├── Requeue                          back to the queue, now (alias WaitingError)
    │   └── WaitingChildrenError             wait for my children first
    ├── JobFailed                         a job somebody waits for has failed: .job_id .reason .stacktrace
    ├── ScriptRefused                     a script said no: .code .job_id .command
    │   ├── JobNotFound −1 · JobNotInState −3 · PendingChildren −4 · ParentNotFound −5
    │   ├── LockLost −6                      another worker holds the lock
    │   │   └── LockMissing −2               nobody does: it ran out
    │   ├── ParentCannotBeReplaced −7 · JobBelongsToScheduler −8
    │   ├── FailedChildren −9 (PermanentError)
    │   ├── SchedulerIdCollision −10 · SchedulerSlotsBusy −11
    │   └── JobLocked · QueueNotPaused · QueueHasActiveJobs
    ├── StoreError                        Redis answered with an error, or not at all
    │   ├── StoreUnavailable (TransientError)   connection lost, LOADING, READONLY, CLUSTERDOWN, …
    │   │   └── ReplyLost                       the command was sent; it may or may not have run
    │   ├── StoreOutOfMemory (TransientError)   maxmemory is reached
    │   ├── CrossSlot (PermanentError)          keys of one command live on different nodes
    │   ├── AccessDenied (PermanentError)       wrong password, or the ACL forbids the command
    │   ├── ScriptFailed                        a script raised an error
    │   ├── ScriptsCorrupt (PermanentError)     the packaged scripts differ from their manifest
    │   └── UnsafeMix (PermanentError)          another library's version on this queue could destroy jobs
    ├── EmbeddedServerFailed              the embedded server did not start or died
    └── Closed                            the object was used after it was closed

    UserWarning
    └── OptionWarning                     a value is allowed but probably not meant

Guarantee: every error pickles with all its fields (handlers run in processes), and no message of a store
error holds a password.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

_Error = TypeVar("_Error", bound="TorilError")

# Greedy on purpose: a password may hold "/" or "@", and hiding too much of a message does no harm.
_CREDENTIALS = re.compile(r"([A-Za-z][\w+.-]*://[^\s:/@]*):\S*@")
_PASSWORD_PARAMETER = re.compile(r"([?&]password=)[^&\s]*", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` with the password of every URL in it replaced by `***`."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _CREDENTIALS.sub(r"\1:***@", text))


def _restore(cls: type[_Error], args: tuple[Any, ...], state: dict[str, Any]) -> _Error:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class TorilError(Exception):
    """The base of all errors of this library."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by calling their class with `args`; ours have fields, so their state is kept.
        return _restore, (type(self), self.args, dict(self.__dict__))


# --- refused before any I/O ---------------------------------------------------------------------------------


class InvalidOption(TorilError, ValueError):
    """A value given by the caller is not acceptable; the message says which, why and what to do."""

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {problem}; {remedy}" if remedy else f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class NotSerializable(InvalidOption):
    """The value has no JSON form."""


class PayloadTooLarge(InvalidOption):
    """Data and options together exceed what a job may hold."""


# --- how a failure is treated -------------------------------------------------------------------------------


class TransientError(TorilError):
    """A failure that may pass: the job is tried again while attempts are left.

    `retry_after` (seconds) asks for at least that pause before the next attempt.
    """

    retry_after: float | None = None

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        if retry_after is not None:
            self.retry_after = retry_after


class PermanentError(TorilError):
    """A failure that will not pass: the job fails at once, whatever attempts are left."""


UnrecoverableError = PermanentError  # the name BullMQ's users know


class PayloadMismatch(InvalidOption, PermanentError):
    """The data does not fit the payload model or schema of the queue: refused at `add`, fatal at pickup."""


class MalformedValue(PermanentError):
    """A field read from Redis does not parse. The raw value is not repeated: it may be huge or secret."""

    def __init__(self, field: str, problem: str, *, job_id: str | None = None) -> None:
        where = f"job {job_id}: {field}" if job_id else field
        super().__init__(f"{where} is malformed: {problem}")
        self.field = field
        self.problem = problem
        self.job_id = job_id


class MissingUser(PermanentError):
    """The user that the job works for does not exist (any more)."""


class UnknownBackoff(PermanentError):
    """The job asks for a custom backoff that this worker was not given."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no backoff {name!r}; pass backoffs={{{name!r}: …}} to the worker")
        self.name = name


class JobTimedOut(TransientError, TimeoutError):
    """The handler ran longer than the job's time-out."""

    def __init__(self, job_id: str, seconds: float) -> None:
        super().__init__(f"job {job_id} ran longer than {seconds:g} s; raise the time-out or split the job")
        self.job_id = job_id
        self.seconds = seconds


class JobCancelled(PermanentError):
    """The job was cancelled while it ran."""

    def __init__(self, job_id: str, reason: str = "cancelled") -> None:
        super().__init__(
            f"job {job_id} was cancelled: {reason}"
            if reason != "cancelled"
            else f"job {job_id} was cancelled"
        )
        self.job_id = job_id
        self.reason = reason


# --- raised by handlers to steer their job ------------------------------------------------------------------


class HandlerSignal(TorilError):
    """Not a failure: the handler asks for another way than completed or failed."""


class RateLimitError(HandlerSignal):
    """Puts the job back and holds the queue for `delay` seconds (`None`: as long as it is held already).

    As in BullMQ, the hold counts for this worker, and for all workers of a queue or with a `rate_limit`.
    """

    def __init__(self, delay: float | None = None, message: str = "rate limited") -> None:
        super().__init__(message)
        self.delay = delay


class Postpone(HandlerSignal):
    """Runs this job again in `delay` seconds, without counting an attempt."""

    def __init__(self, delay: float = 0.0, message: str = "postponed") -> None:
        super().__init__(message)
        self.delay = delay


class Requeue(HandlerSignal):
    """Puts this job back at once, without counting an attempt."""


class WaitingChildrenError(HandlerSignal):
    """The job waits until its children have finished, then runs again."""


DelayedError = Postpone  # the names BullMQ's users know
WaitingError = Requeue


class JobFailed(TorilError):
    """The job that was waited for ended in `failed`."""

    def __init__(self, job_id: str, reason: str, stacktrace: list[str] | None = None) -> None:
        super().__init__(f"job {job_id} failed: {reason}")
        self.job_id = job_id
        self.reason = reason
        self.stacktrace = stacktrace or []


# --- answers of scripts -------------------------------------------------------------------------------------


class ScriptRefused(TorilError):
    """A script checked its conditions and changed nothing. `code` is its negative answer."""

    code: int = 0
    problem: str = "the script refused"
    hint: str = ""

    def __init__(
        self,
        job_id: str | None = None,
        *,
        command: str | None = None,
        hint: str | None = None,
        code: int | None = None,
    ) -> None:
        self.job_id = job_id
        self.command = command
        if code is not None:
            self.code = code
        if hint is not None:
            self.hint = hint
        super().__init__(self._describe())

    def _describe(self) -> str:
        who = f"job {self.job_id}: " if self.job_id else ""
        by = f" ({self.command})" if self.command else ""
        then = f"; {self.hint}" if self.hint else ""
        return f"{who}{self.problem}{by}{then}"


class JobNotFound(ScriptRefused):
    """There is no such job."""

    code = -1
    problem = "does not exist"
    hint = "it was never added, was cancelled while it waited, or was removed when it finished"


class LockLost(ScriptRefused):
    """The job belongs to another worker now; what this worker did may be done again."""

    code = -6
    problem = "the lock belongs to another worker"
    hint = "raise lock_duration or move CPU work to processes"


class LockMissing(LockLost):
    """The lock ran out: the job is about to be taken for stalled, or already was."""

    code = -2
    problem = "the lock has run out"


class JobNotInState(ScriptRefused):
    """The job is not where the command expects it."""

    code = -3
    problem = "is not in the state that this needs"
    hint = "it was moved, finished or removed meanwhile: get_state() tells"


class PendingChildren(ScriptRefused):
    """The job has children that have not finished."""

    code = -4
    problem = "has unfinished children"
    hint = "raise WaitingChildrenError to wait for them"


class ParentNotFound(ScriptRefused):
    """The parent named in the options does not exist."""

    code = -5
    problem = "the parent job does not exist"
    hint = "add the parent first, or use FlowProducer"


class ParentCannotBeReplaced(ScriptRefused):
    """A job of this id exists and has another parent."""

    code = -7
    problem = "the job exists already and has another parent"
    hint = "give the child another job_id"


class JobBelongsToScheduler(ScriptRefused):
    """The job is the next run of a scheduler and cannot be removed alone."""

    code = -8
    problem = "belongs to a scheduler"
    hint = "remove the scheduler instead"


class FailedChildren(ScriptRefused, PermanentError):
    """A child failed, so the parent cannot complete."""

    code = -9
    problem = "at least one child has failed"


class SchedulerIdCollision(ScriptRefused):
    """The next run's id is taken by another job."""

    code = -10
    problem = "the next run's job id exists already"


class SchedulerSlotsBusy(ScriptRefused):
    """The current and the next slot of the scheduler both have a job."""

    code = -11
    problem = "the current and the next run exist already"


class JobLocked(ScriptRefused):
    """The job, or one of its children, is being worked on."""

    problem = "is locked by a worker"
    hint = "wait until it has finished, or cancel it"


class QueueNotPaused(ScriptRefused):
    """Obliterating needs a paused queue."""

    code = -1
    problem = "the queue is not paused"
    hint = "pause it first"


class QueueHasActiveJobs(ScriptRefused):
    """Obliterating refuses while jobs are being worked on."""

    code = -2
    problem = "the queue has active jobs"
    hint = "stop the workers first, or pass force=True"


_REFUSALS: dict[int, type[ScriptRefused]] = {
    kind.code: kind
    for kind in (
        JobNotFound,
        LockMissing,
        JobNotInState,
        PendingChildren,
        ParentNotFound,
        LockLost,
        ParentCannotBeReplaced,
        JobBelongsToScheduler,
        FailedChildren,
        SchedulerIdCollision,
        SchedulerSlotsBusy,
    )
}


def refusal(code: int, job_id: str | None = None, command: str | None = None) -> ScriptRefused:
    """The error for a negative answer. An unknown code still gives a `ScriptRefused` that names it."""
    kind = _REFUSALS.get(code)
    if kind is None:
        return ScriptRefused(job_id, command=command, code=code, hint=f"unknown code {code}")
    return kind(job_id, command=command)


def obliterate_refusal(code: int) -> ScriptRefused:
    """`obliterate` gives −1 and −2 a meaning of its own."""
    if code == QueueNotPaused.code:
        return QueueNotPaused(command="obliterate")
    if code == QueueHasActiveJobs.code:
        return QueueHasActiveJobs(command="obliterate")
    return refusal(code, command="obliterate")


# --- the store ----------------------------------------------------------------------------------------------


class StoreError(TorilError):
    """Redis answered with an error, or not at all. Passwords in the text are replaced."""

    hint: str = ""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        if hint is not None:
            self.hint = hint
        text = redact(message) or (self.__doc__ or "").split("\n")[0].rstrip(".")
        super().__init__(f"{text}; {self.hint}" if self.hint else text)


class StoreUnavailable(StoreError, TransientError):
    """Redis cannot be reached or cannot serve now."""


class ReplyLost(StoreUnavailable):
    """The command was sent, but its reply never came: it may or may not have run."""


class StoreOutOfMemory(StoreError, TransientError):
    """Redis has reached maxmemory and refuses writes."""

    hint = "raise maxmemory, remove finished jobs (remove_on_complete), or add workers"


class CrossSlot(StoreError, PermanentError):
    """The keys of one command live in different slots of the cluster."""

    hint = 'give the queues one shared hash tag, e.g. prefix="{bull}"'


class AccessDenied(StoreError, PermanentError):
    """Redis refuses the credentials, or its ACL forbids the command."""

    hint = "check user and password; `toril doctor` prints the smallest ACL that works"


class ScriptFailed(StoreError):
    """A script raised an error inside Redis."""


class ScriptsCorrupt(StoreError, PermanentError):
    """The packaged scripts differ from their manifest."""

    hint = "reinstall toril"


class UnsafeMix(StoreError, PermanentError):
    """A client of another major version uses this queue in a way that can destroy jobs."""

    hint = "run one major version of BullMQ per queue; `toril doctor` shows which clients are connected"


class EmbeddedServerFailed(TorilError):
    """The embedded server did not start, or died."""


class Closed(TorilError):
    """The object was used after it was closed."""


class OptionWarning(UserWarning):
    """A value is allowed, but it is probably not what was meant."""
