"""The root of the tree, errors of options and handlers, and the signals of handlers.

Guarantee: every error pickles with all its fields.
"""

from __future__ import annotations

import signal
from typing import TypeVar

_Error = TypeVar("_Error", bound="TorilError")


def _restore(cls: type[_Error], args: tuple[object, ...], state: dict[str, object]) -> _Error:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class TorilError(Exception):
    """The base of all errors of this library."""

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle by calling their class with `args`; those of toril have fields, so their state is stored.
        return _restore, (type(self), self.args, dict(self.__dict__))


# --- refused before any I/O ---------------------------------------------------------------------------------


class InvalidOption(TorilError, ValueError):
    """A value given by the caller is not acceptable; the message has the field, the problem and the remedy."""

    def __init__(self, field: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {problem}; {remedy}" if remedy else f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class UnknownOption(InvalidOption, TypeError):
    """There is no option of this name; the message has the one that was probably meant."""


class NotSerializable(InvalidOption):
    """The value has no JSON form."""


class PayloadTooLarge(InvalidOption):
    """Data and options together exceed what a job may hold."""


# --- how a failure is treated -------------------------------------------------------------------------------


class TransientError(TorilError):
    """A transient failure: the job is tried again while attempts are left.

    `retry_after` (seconds) asks for at least that pause before the next attempt.
    """

    retry_after: float | None = None

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        if retry_after is not None:
            self.retry_after = retry_after


class PermanentError(TorilError):
    """A permanent failure: the job fails at once, whatever attempts are left."""


UnrecoverableError = PermanentError  # BullMQ's name


class PayloadMismatch(InvalidOption, PermanentError):
    """The data does not fit the payload model or schema of the queue: refused at `add`, permanent in a worker."""


class MalformedValue(PermanentError):
    """A field read from Redis does not parse. The message omits the raw value: it may be huge or secret."""

    def __init__(self, field: str, problem: str, *, job_id: str | None = None) -> None:
        where = f"job {job_id}: {field}" if job_id else field
        super().__init__(f"{where} is malformed: {problem}")
        self.field = field
        self.problem = problem
        self.job_id = job_id


class UnreadablePayload(PermanentError):
    """An encoded payload cannot be decoded: wrong key, unknown codec, or damaged. The job keeps it."""

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field} cannot be decoded: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy


class PlainPayload(PermanentError):
    """A payload is not encrypted and its queue refuses such payloads."""

    def __init__(self, field: str) -> None:
        remedy = "add it with the codecs of the queue, or set allow_plain=True"
        super().__init__(f"{field} is not encrypted, and its queue has encrypted payloads; {remedy}")
        self.field = field


class MissingUser(PermanentError):
    """The user that the job works for does not exist (any more)."""


class UnknownBackoff(PermanentError):
    """The job has a custom backoff that this worker was not given."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no backoff {name!r}; pass backoffs={{{name!r}: …}} to the worker")
        self.name = name


class ResultTooLarge(PermanentError):
    """The handler returned more bytes than a result may have: see the worker's option `max_result_size`."""

    def __init__(self, message: str = "", *, error_code: str | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code  # the dead letter's `last_error`, when given


class JobTimedOut(TransientError, TimeoutError):
    """The handler ran longer than the job's time-out."""

    def __init__(self, job_id: str, seconds: float) -> None:
        super().__init__(f"job {job_id} ran longer than {seconds:g} s; raise the time-out or split the job")
        self.job_id = job_id
        self.seconds = seconds


class StalledTooOften(PermanentError):
    """Too many workers died while they ran the job; the next one fails it."""


class JobExpired(PermanentError):
    """A worker fetched the job after it had expired (`expires`); its handler did not run."""


class ProcessDied(PermanentError):
    """The process of a handler ended before the handler did."""

    def __init__(self, job_id: str, exit_code: int | None) -> None:
        super().__init__(f"the process that ran job {job_id} died: {_exit_text(exit_code)}")
        self.job_id = job_id
        self.exit_code = exit_code


def _exit_text(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"


class StoppedByWorker(TorilError):
    """The worker stops, and this job goes back to the queue."""


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


# --- raised by handlers to end their attempt ------------------------------------------------------------------


class HandlerSignal(TorilError):
    """Not a failure: the job is neither completed nor failed."""


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


class NewerPayload(Postpone):
    """The job was added by a newer version of its task: a worker with that version runs it."""

    def __init__(self, task: str, version: int, known: int, delay: float = 10.0) -> None:
        text = f"the payload of {task!r} has version {version}, and this worker knows {known}"
        super().__init__(delay, f"{text}; start workers of the newer version")
        self.task = task
        self.version = version
        self.known = known


class Requeue(HandlerSignal):
    """Puts this job back at once, without counting an attempt."""


class WaitingChildrenError(HandlerSignal):
    """The job waits until its children have finished, then runs again.

    Raise it when `await job.move_to_waiting_children()` is True. Without that call the worker moves the job; if no
    child is pending then, the job runs again after a second.
    """

    moved = False  # set by the worker: the handler has called `move_to_waiting_children` before


DelayedError = Postpone  # BullMQ's names
WaitingError = Requeue


class Detached(TorilError):
    """The job is not in a queue on a server: it belongs to a test, to a direct call or to a list or stream queue."""

    def __init__(self, job_id: str, why: str) -> None:
        super().__init__(f"job {job_id}: this needs a BullMQ queue, and {why}")
        self.job_id = job_id
        self.why = why


class JobFailed(TorilError):
    """The job that was waited for ended in `failed`."""

    def __init__(self, job_id: str, reason: str, stacktrace: list[str] | None = None) -> None:
        super().__init__(f"job {job_id} failed: {reason}")
        self.job_id = job_id
        self.reason = reason
        self.stacktrace = stacktrace or []


# --- other errors --------------------------------------------------------------------------------


class ExtraMissing(TorilError, ModuleNotFoundError):
    """A part of toril needs a package that one of its extras installs."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f'{module} is not installed; run `pip install "toril[{extra}]"`')
        self.extra = extra
        self.name = self.module = module


class Closed(TorilError):
    """The object was used after it was closed."""


class Interrupted(Closed):
    """A call was cancelled, or its event loop ended, before it had its result."""


class OptionWarning(UserWarning):
    """A value is allowed, but probably not meant."""


class InvalidOutboxRow(TorilError):
    """A row of an outbox is no job: the outbox did not write it, or it was changed."""

    def __init__(self, row: str, problem: str) -> None:
        super().__init__(f"row {row}: {problem}")
        self.row = row
