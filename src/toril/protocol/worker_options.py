"""The options of a worker.

Guarantee: options that exist are valid; durations are in seconds.
"""

from __future__ import annotations

import inspect
import logging
import os
import platform
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from toril.errors import InvalidOption
from toril.protocol.backoff import Backoff, BackoffFunction, is_backoff_function
from toril.protocol.batch import Batch
from toril.protocol.codecs import GivenCodecs, QueueCodecs
from toril.protocol.cron import CronGeneration
from toril.protocol.duration import Duration, to_ms, to_seconds
from toril.protocol.given_fields import default, no_seconds, seconds, take_defaults
from toril.protocol.json_types import JsonObject
from toril.protocol.keys import check_text
from toril.protocol.option_names import knows_its_options, refuse_unknown
from toril.protocol.option_parts import KeepJobs, Removal, check_boolean, check_integer
from toril.protocol.option_warnings import warn_option
from toril.protocol.repeat_rules import RepeatRules, RepeatStrategy
from toril.protocol.results_to import ResultsTo
from toril.telemetry.hooks import MetricsCollector, Tracer

if TYPE_CHECKING:
    from toril.protocol.classify import ErrorRule
    from toril.protocol.given_fields import OptionalSeconds, Seconds

Executor: TypeAlias = Literal["auto", "async", "thread", "process"]
UnknownErrors: TypeAlias = Literal["permanent", "transient"]
UnknownNames: TypeAlias = Literal["requeue", "fail"]
# As much as a job's data and options may have: a result stays in Redis as long as its job.
DEFAULT_MAX_RESULT_SIZE = 10 * 1024 * 1024
Logger: TypeAlias = "logging.Logger | logging.LoggerAdapter[Any]"


def check_removal(name: str, value: object) -> None:
    """Raises if a value does not define how many finished jobs stay."""
    if value is not None and not isinstance(value, (bool, KeepJobs)):
        check_integer(name, value, 0, 2**31 - 1)


def keep_to_wire(value: Removal | None) -> JsonObject | None:
    """How many finished jobs stay, as the scripts take it; None for what is left to the job."""
    if value is None or isinstance(value, KeepJobs):
        return None if value is None else value.to_wire()
    return {"count": (0 if value else -1) if isinstance(value, bool) else value}


def new_worker_id() -> str:
    """`{hostname}-{pid}-{random6}`: identifies the process in log lines and jobs."""
    return f"{platform.node()}-{os.getpid()}-{secrets.token_hex(3)}"


@knows_its_options("a field of RateLimit")
@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `count` jobs start per `period`, over all workers of the queue."""

    count: int
    period: Seconds = seconds(1.0)

    def __post_init__(self) -> None:
        _at_least("rate_limit.count", self.count, 1)
        take_defaults(self, ("period",))
        object.__setattr__(self, "period", to_seconds("rate_limit.period", self.period, positive=True))

    def to_wire(self) -> dict[str, int]:
        """BullMQ's spelling, in milliseconds."""
        return {"max": self.count, "duration": to_ms(self.period)}


def _at_least(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOption(name, f"is a {type(value).__name__}", f"give an integer of at least {least}")
    if value < least:
        raise InvalidOption(name, f"is {value}", f"give an integer of at least {least}")


@knows_its_options("a worker option")
@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """The options of a worker."""

    concurrency: int = default(1)  # jobs at the same time
    lock_duration: Seconds = seconds(30.0)  # a job whose lock is not renewed for this long counts as stalled
    heartbeat_interval: Seconds = seconds(15.0)  # how often locks are renewed; left out: half the lock
    stalled_check_interval: Seconds = seconds(30.0)  # how often stalled jobs are looked for
    max_stalled_count: int = default(1)  # a job that stalls more often fails
    max_attempts: int | None = default(None)  # overrides the attempts of every job
    backoff_delay: Seconds = seconds(1.0)  # base of the backoff for jobs without one, see default_backoff
    max_backoff_delay: Seconds = seconds(3600.0)  # cap of exponential backoffs
    backoff_jitter: float = default(0.2)  # ±20 %, so that what failed together is not retried together
    backoffs: Mapping[str, BackoffFunction] = default({})  # custom backoffs by name
    worker_id: str | None = default(None)  # None: {hostname}-{pid}-{random6}
    reconnect_delay: Seconds = seconds(0.1)  # first pause after Redis was lost
    max_reconnect_delay: Seconds = seconds(30.0)
    max_reconnect_attempts: int = default(0)  # 0: never give up
    events_max_len: int = default(10_000)  # about how many events are stored
    shutdown_timeout: Seconds = seconds(30.0)  # how long running jobs may go on after stop; 0: not at all
    job_timeout: OptionalSeconds = no_seconds()  # how long one attempt may run; None: for ever
    job_timeouts: Mapping[str, Duration] = default({})  # the same by job name, in place of job_timeout
    max_started_attempts: int | None = default(None)  # a job that began more often fails, however it ended
    remove_on_complete: Removal | None = default(None)  # for jobs without this option of their own
    remove_on_fail: Removal | None = default(None)  # for jobs without this option of their own
    skip_stalled_check: bool = default(False)  # never look for stalled jobs; others must
    skip_lock_renewal: bool = default(False)  # never renew locks: handlers must end within lock_duration
    maximum_rate_limit_delay: Seconds = seconds(30.0)  # how long a rate limit counts before it is read again
    rate_limit: RateLimit | None = default(None)  # over all workers of the queue
    unknown_errors: UnknownErrors = default("permanent")  # "transient": retry everything, as BullMQ does
    unknown_names: UnknownNames = default("requeue")  # jobs without a handler: back for others, or "fail"
    error_rules: Sequence[ErrorRule] = default(())  # applied before the built-in classes
    executor: Executor = default("auto")  # auto: coroutines in the loop, plain functions in threads
    max_jobs_per_process: int | None = default(None)  # a process is replaced after so many jobs
    max_process_memory: int | None = default(None)  # … or above so many bytes
    max_result_size: int | None = default(
        DEFAULT_MAX_RESULT_SIZE
    )  # JSON bytes; a larger result fails; None: any
    batch: Batch | None = default(None)  # the handler gets a list of jobs
    results_to: ResultsTo | str | None = default(None)  # a queue that gets each result as a job
    drain_delay: Seconds = seconds(5.0)  # how long an idle worker blocks on the marker in one call
    cron_generation: CronGeneration = default(5)  # whose parser reads patterns: that of BullMQ 5 or 6
    repeat_strategy: RepeatStrategy | None = default(None)  # times of schedulers' patterns, in place of cron
    metrics_minutes: int | None = default(None)  # minutes of ended jobs stored for get_metrics and bull-board
    metrics: MetricsCollector | None = default(None)
    tracer: Tracer | None = default(None)  # spans around handlers, in the trace of the add
    logger: Logger | None = default(None)
    log_payloads: bool = default(False)  # payloads and results in log lines: off by default
    payload: Any = default(None)  # model or JSON schema of the data
    codecs: GivenCodecs = default(None)  # how data, results and progress are encoded; by job name, too

    given: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        given = take_defaults(self, [name for name in self.__dataclass_fields__ if name != "given"])
        object.__setattr__(self, "given", tuple(given))
        self._check_durations()
        self._check_numbers()
        self._check_choices()
        _ = self.repeat_rules
        if "heartbeat_interval" not in given:
            # Half the lock: one missed renewal still leaves time for a second.
            object.__setattr__(self, "heartbeat_interval", self.lock_duration / 2)
        self._check_together()

    @classmethod
    def of(cls, fields: WorkerOptionsDict, maker: Callable[..., Any]) -> WorkerOptions:
        """What `maker` was called with beside its own arguments; an unknown name is refused with the nearest one."""
        own = [name for name in cls.__dataclass_fields__ if name != "given"]
        arguments = inspect.signature(maker).parameters.values()
        beside = [one.name for one in arguments if one.kind is one.KEYWORD_ONLY]
        refuse_unknown(fields, [*own, *beside], "a worker option")
        return cls(**fields)

    def _check_durations(self) -> None:
        for name in _POSITIVE:
            object.__setattr__(self, name, to_seconds(name, getattr(self, name), positive=True))
        for name in ("backoff_delay", "shutdown_timeout"):
            object.__setattr__(self, name, to_seconds(name, getattr(self, name)))
        if self.job_timeout is not None:
            object.__setattr__(
                self, "job_timeout", to_seconds("job_timeout", self.job_timeout, positive=True)
            )

    def _check_timeouts(self) -> None:
        checked = {
            check_text("job_timeouts", name): to_seconds(f"job_timeouts[{name!r}]", value, positive=True)
            for name, value in self.job_timeouts.items()
        }
        object.__setattr__(self, "job_timeouts", checked)

    def _check_numbers(self) -> None:
        for name, least in _INTEGERS.items():
            value = getattr(self, name)
            if value is not None or name not in _OPTIONAL_INTEGERS:
                _at_least(name, value, least)
        jitter: object = self.backoff_jitter
        if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
            raise InvalidOption("backoff_jitter", "is not a number from 0 to 1", "0.2 means ±20 %")

    def _check_choices(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                given = getattr(self, name)
                raise InvalidOption(name, f"is {given!r}", f"choose one of {', '.join(get_args(choices))}")
        if self.worker_id is not None:
            check_text("worker_id", self.worker_id)
        for name in ("skip_stalled_check", "skip_lock_renewal"):
            check_boolean(name, getattr(self, name))
        for name in ("remove_on_complete", "remove_on_fail"):
            check_removal(name, getattr(self, name))
        self._check_types()
        self._check_timeouts()
        if isinstance(self.results_to, str):
            object.__setattr__(self, "results_to", ResultsTo(self.results_to))
        for name, function in self.backoffs.items():
            if not callable(function):
                raise InvalidOption("backoffs", f"{name!r} is not a function", "give a function")
            _check_backoff(name, function)

    def _check_types(self) -> None:
        wanted: dict[str, tuple[Any, str]] = {
            "backoffs": (Mapping, "a mapping from names to functions"),
            "job_timeouts": (Mapping, "a mapping from job names to seconds"),
            "error_rules": (Sequence, "a list of rules"),
            "batch": (Batch, "Batch(size=100)"),
            "rate_limit": (RateLimit, "RateLimit(count, period)"),
            "results_to": ((ResultsTo, str), 'the name of a queue, or ResultsTo("queue", …)'),
            "tracer": (Tracer, "an object with the methods of Tracer"),
            "logger": (
                (logging.Logger, logging.LoggerAdapter),
                "a logger of logging; structlog: see StructlogHandler",
            ),
        }
        if self.metrics is not None and not _is_collector(self.metrics):
            given = type(self.metrics).__name__
            raise InvalidOption(
                "metrics", f"is a {given}", "give an object with the methods of MetricsCollector"
            )
        for name, (kind, remedy) in wanted.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InvalidOption(name, f"is a {type(value).__name__}", f"give {remedy}")

    @property
    def queue_codecs(self) -> QueueCodecs | None:
        """The codecs by job name."""
        return QueueCodecs.of(self.codecs)

    def _check_together(self) -> None:
        if self.queue_codecs is not None and self.results_to is not None:
            problem = "is given with codecs, which encode a result otherwise than the data of a job"
            raise InvalidOption("results_to", problem, "add the job in the handler")
        if self.max_backoff_delay < self.backoff_delay:
            raise InvalidOption("max_backoff_delay", "is below backoff_delay", "raise it")
        if self.max_reconnect_delay < self.reconnect_delay:
            raise InvalidOption("max_reconnect_delay", "is below reconnect_delay", "raise it")
        if self.heartbeat_interval > self.lock_duration / 2:
            late = self.heartbeat_interval >= self.lock_duration
            cost = "locks expire before they are renewed" if late else "one missed renewal loses the lock"
            warn_option(
                f"heartbeat_interval ({self.heartbeat_interval:g} s) is more than half of lock_duration "
                f"({self.lock_duration:g} s): {cost}"
            )

    @property
    def repeat_rules(self) -> RepeatRules:
        """How the patterns of schedulers are read."""
        return RepeatRules(cron_generation=self.cron_generation, repeat_strategy=self.repeat_strategy)

    @property
    def default_backoff(self) -> Backoff | None:
        """The backoff of jobs without one, if this worker was given one.

        Jobs that toril adds have one. A job of Node without one is retried at once, as Node does, unless
        `backoff_delay` was given or `max_attempts` overrides what the job wanted anyway.
        """
        is_given = "backoff_delay" in self.given or self.max_attempts is not None
        return Backoff("exponential", self.backoff_delay) if is_given and self.backoff_delay > 0 else None


def _is_collector(collector: object) -> bool:
    """Collectors of applications may lack the methods of figures that are newer than they."""
    methods = [name for name in vars(MetricsCollector) if not name.startswith("_")]
    return any(callable(getattr(collector, name, None)) for name in methods)


def _check_backoff(name: str, function: BackoffFunction) -> None:
    """A function of the wrong shape would be found out by the first job that is retried, and fail it."""
    if not is_backoff_function(function):
        problem = f"{name!r} takes neither two arguments nor three"
        raise InvalidOption("backoffs", problem, "write `def pause(attempts_made, error, job): …`")


_CHOICES = {"executor": Executor, "unknown_errors": UnknownErrors, "unknown_names": UnknownNames}
_POSITIVE = (
    "lock_duration",
    "heartbeat_interval",
    "stalled_check_interval",
    "max_backoff_delay",
    "reconnect_delay",
    "max_reconnect_delay",
    "drain_delay",
    "maximum_rate_limit_delay",
)
_INTEGERS = {
    "concurrency": 1,
    "max_stalled_count": 0,
    "max_attempts": 1,
    "max_reconnect_attempts": 0,
    "events_max_len": 1,
    "max_jobs_per_process": 1,
    "max_process_memory": 1,
    "max_result_size": 1,
    "metrics_minutes": 1,
    "max_started_attempts": 1,
}
_OPTIONAL_INTEGERS = (
    "max_attempts",
    "max_jobs_per_process",
    "max_process_memory",
    "max_result_size",
    "metrics_minutes",
    "max_started_attempts",
)


class WorkerOptionsDict(TypedDict, total=False):
    """The fields of `WorkerOptions`, for keyword arguments."""

    concurrency: int
    lock_duration: Duration
    heartbeat_interval: Duration
    stalled_check_interval: Duration
    max_stalled_count: int
    max_attempts: int | None
    backoff_delay: Duration
    max_backoff_delay: Duration
    backoff_jitter: float
    backoffs: Mapping[str, BackoffFunction]
    worker_id: str | None
    reconnect_delay: Duration
    max_reconnect_delay: Duration
    max_reconnect_attempts: int
    events_max_len: int
    shutdown_timeout: Duration
    job_timeout: Duration | None
    job_timeouts: Mapping[str, Duration]
    max_started_attempts: int | None
    remove_on_complete: Removal | None
    remove_on_fail: Removal | None
    skip_stalled_check: bool
    skip_lock_renewal: bool
    maximum_rate_limit_delay: Duration
    rate_limit: RateLimit | None
    unknown_errors: UnknownErrors
    unknown_names: UnknownNames
    error_rules: Sequence[ErrorRule]
    executor: Executor
    max_jobs_per_process: int | None
    max_process_memory: int | None
    max_result_size: int | None
    batch: Batch | None
    results_to: ResultsTo | str | None
    drain_delay: Duration
    cron_generation: CronGeneration
    repeat_strategy: RepeatStrategy | None
    metrics_minutes: int | None
    metrics: MetricsCollector | None
    tracer: Tracer | None
    logger: Logger | None
    log_payloads: bool
    payload: Any
    codecs: GivenCodecs
