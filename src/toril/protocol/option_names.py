"""Unknown option names are refused with the name that was probably meant.

    add(jobId=…)          job_id                  another spelling
    add(max_retries=3)    attempts=               what Celery and Dramatiq call it
    Queue(prefx=…)        prefix                  a typing error

Guarantee: a call with known names costs no more than before; an error inside the call stays what it was.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

from toril.errors import UnknownOption

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)


def refuse_unknown(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuses a name that is no option, with the one that was probably meant."""
    for name in given:
        if name not in known:
            raise UnknownOption(name, f"is not {what}", remedy_for(name, known))


def remedy_for(name: str, known: Collection[str]) -> str:
    """What to write instead of `name`, where `known` are the names that are possible."""
    spelling = _snake(name)
    if spelling in known:
        return f"did you mean {spelling}?"
    if foreign := _FOREIGN.get(spelling.strip("_")):
        return foreign.remedy(known)
    near = difflib.get_close_matches(spelling, known, 1)
    return f"did you mean {near[0]}?" if near else f"options are {', '.join(known)}"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).replace("-", "_").lower()


# --- for classes and functions --------------------------------------------------------------------------------


def knows_its_options(what: str) -> Callable[[C], C]:
    """Makes a class refuse unknown names with the one that was probably meant."""

    def decorate(made: C) -> C:
        made.__init__ = knows_its_names(what)(made.__init__)  # type: ignore[misc]
        return made

    return decorate


def knows_its_names(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """The same for a function or a method; one that is a coroutine function stays one."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, T]", _awaited(function, what))

        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> T:
            try:
                return function(*args, **named)
            except TypeError:
                check_call(function, args, named, what)
                raise

        return call

    return decorate


def _awaited(function: Callable[P, Coroutine[Any, Any, T]], what: str) -> Callable[P, Coroutine[Any, Any, T]]:
    @functools.wraps(function)
    async def call(*args: P.args, **named: P.kwargs) -> T:
        try:
            step = function(*args, **named)
        except TypeError:
            check_call(function, args, named, what)
            raise
        return await step

    return call


def check_call(
    function: Callable[..., object], args: Sequence[object], named: Iterable[str], what: str
) -> None:
    """Refuses what the function cannot be called with, if that is what is wrong."""
    parameters = inspect.signature(function).parameters.values()
    in_order = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    by_name = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        by_name.append("options")
    else:
        refuse_unknown(named, [name for name in (*in_order, *by_name) if name != "self"], what)
    if len(args) > len(in_order) and not any(one.kind is one.VAR_POSITIONAL for one in parameters):
        problem = f"{len(args) - len(in_order)} too many without a name"
        places = ", ".join(name for name in in_order if name != "self")
        remedy = f"give {places} in this order, and by name" if places else "give by name"
        raise UnknownOption("arguments", problem, f"{remedy}: {', '.join(by_name)}")


# --- what others call it --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _OtherLibraryName:
    """A name of another library: toril's names for it where they are options, and a remedy elsewhere."""

    ours: tuple[str, ...]
    elsewhere: str = ""
    remark: str = ""

    def remedy(self, known: Collection[str]) -> str:
        here = next((name for name in self.ours if name in known), None)
        if here is not None:
            return f"it is called {here} here{f': {self.remark}' if self.remark else ''}"
        return self.elsewhere or f"options are {', '.join(known)}"


_SERVER = _OtherLibraryName(("redis",), "give redis= to Queue and Worker", "a URL, or a redis-py client")
_ATTEMPTS = _OtherLibraryName(
    ("attempts", "max_attempts", "call_attempts"),
    "give attempts= to add(), or max_attempts= to the worker",
    "it counts the first attempt, too",
)
_LATER = _OtherLibraryName(("delay",), "give delay= to add()", "seconds from now, or a timedelta")
_AT = _OtherLibraryName(("run_at", "start", "delay"), "give delay= to add()", "delay= takes seconds from now")
_TIME_LIMIT = _OtherLibraryName(
    ("job_timeout", "command_timeout"),
    "a worker limits its jobs: Worker(…, job_timeout=seconds); job.wait_until_finished(timeout=seconds) waits",
    "in seconds",
)
_ID = _OtherLibraryName(("job_id", "worker_id"), "give job_id= to add()")
_PAUSE = _OtherLibraryName(
    ("backoff", "backoff_delay", "reconnect_delay"), "give backoff= to add(): Backoff.exponential(seconds)"
)
_KEPT = _OtherLibraryName(
    ("remove_on_complete", "keep_results", "defaults"),
    "give remove_on_complete=KeepJobs(age=seconds) to add(), or to JobOptions for Queue(defaults=…)",
    "KeepJobs(age=seconds) for BullMQ queues",
)
_AGAIN = _OtherLibraryName(("cron", "every"), "repeated jobs: queue.schedulers.upsert(id, cron=… or every=…)")
_ONCE = _OtherLibraryName(("deduplication",), "give job_id= or deduplication= to add()")
_AT_ONCE = _OtherLibraryName(("concurrency",), "give concurrency= to the worker")
_DATA = _OtherLibraryName(("data", "payload"), "give data as the second argument of add(): a JSON object")
_OPTIONS = _OtherLibraryName(
    ("options", "defaults"), "write options as arguments: add(name, data, attempts=5)", "JobOptions(…)"
)
_DEFAULTS = _OtherLibraryName(("defaults",), "give Queue(defaults=JobOptions(…))", "JobOptions(…)")
_QUEUE = _OtherLibraryName(("queue", "name"), "the queue is the object: Queue(name).add(…)")
_PARENT = _OtherLibraryName(
    ("parent",), "a job that waits for others: FlowProducer().add(FlowNode(…, children=[…]))"
)
_KILLED = _OtherLibraryName(("max_jobs_per_process",), "give max_jobs_per_process= to the worker")

# Names in BullMQ, Celery, Dramatiq, RQ, arq and redis-py, in snake_case and without underscores around them.
_FOREIGN: dict[str, _OtherLibraryName] = {
    **dict.fromkeys(
        "connection connection_string redis_conn redis_settings redis_pool redis_url".split(), _SERVER
    ),
    **dict.fromkeys("url uri dsn host port broker broker_url client server address".split(), _SERVER),
    **dict.fromkeys("retries retry max_retries max_tries tries retry_count max_attempts".split(), _ATTEMPTS),
    **dict.fromkeys("countdown defer_by delay_ms delay_seconds enqueue_in".split(), _LATER),
    **dict.fromkeys("eta defer_until run_at enqueue_at scheduled_for start_date".split(), _AT),
    **dict.fromkeys(
        "timeout time_limit soft_time_limit task_time_limit default_timeout".split(), _TIME_LIMIT
    ),
    **dict.fromkeys("max_runtime execution_timeout job_timeout socket_timeout".split(), _TIME_LIMIT),
    **dict.fromkeys("id task_id message_id uid unique_id".split(), _ID),
    **dict.fromkeys("retry_backoff retry_delay default_retry_delay min_backoff backoff_ms".split(), _PAUSE),
    **dict.fromkeys(
        "result_ttl keep_result keep_result_seconds result_expires failure_ttl ttl".split(), _KEPT
    ),
    **dict.fromkeys("remove_on_complete remove_on_fail".split(), _KEPT),
    **dict.fromkeys("cron pattern every repeat_every crontab interval schedule cron_jobs".split(), _AGAIN),
    **dict.fromkeys("debounce dedup dedup_id unique unique_for unique_key singleton_key".split(), _ONCE),
    **dict.fromkeys("max_jobs prefetch prefetch_multiplier worker_concurrency max_workers".split(), _AT_ONCE),
    **dict.fromkeys("workers num_workers threads pool_size parallelism".split(), _AT_ONCE),
    **dict.fromkeys("args kwargs payload data body message params".split(), _DATA),
    **dict.fromkeys("opts options job_options".split(), _OPTIONS),
    **dict.fromkeys("default_job_options default_options".split(), _DEFAULTS),
    **dict.fromkeys("queue_name queue routing_key".split(), _QUEUE),
    **dict.fromkeys("depends_on children link chain".split(), _PARENT),
    **dict.fromkeys("max_tasks_per_child max_jobs_per_worker maxtasksperchild".split(), _KILLED),
    "bind": _OtherLibraryName(
        (),
        "take a parameter of the type Context (in a plain function toril.sync.Context): task(ctx: Context, …)",
    ),
    "autoretry_for": _OtherLibraryName(("retry_on",)),
    "dont_autoretry_for": _OtherLibraryName(("fail_on",)),
    "acks_late": _OtherLibraryName((), "leave it out: a job is settled after its handler has ended"),
    "ignore_result": _OtherLibraryName(("remove_on_complete",)),
    "at_front": _OtherLibraryName(("lifo",)),
    "front": _OtherLibraryName(("lifo",)),
    "limiter": _OtherLibraryName(
        ("rate_limit",), "give rate_limit=RateLimit(100, period=1) to the worker", "RateLimit(…)"
    ),
    "stalled_interval": _OtherLibraryName(("stalled_check_interval",)),
    "lock_renew_time": _OtherLibraryName(("heartbeat_interval",)),
    "visibility_timeout": _OtherLibraryName(("lock_duration", "claim_idle")),
    "backoff_strategy": _OtherLibraryName(("backoffs",), "give backoffs={name: function} to the worker"),
    "settings": _OtherLibraryName(("backoffs",)),
    "use_worker_threads": _OtherLibraryName(("executor",)),
    "telemetry": _OtherLibraryName(("tracer",)),
    "autorun": _OtherLibraryName(
        (), "a worker starts with `async with worker`, `await worker.start()` or `await worker.run()`"
    ),
    **dict.fromkeys("timezone time_zone zone".split(), _OtherLibraryName(("tz",))),
    "last_event_id": _OtherLibraryName(("last_id",)),
    "skip_metas_update": _OtherLibraryName(("skip_meta",)),
    "streams": _OtherLibraryName(("events_max_len",)),
    "max_len_events": _OtherLibraryName(("events_max_len",)),
    "queues": _OtherLibraryName((), "a worker serves one queue: make one for each"),
    "group": _OtherLibraryName(("consumer_group",)),
    "max_deliveries": _ATTEMPTS,
    "socket_connect_timeout": _OtherLibraryName(
        ("connect_timeout",), "give ConnectionPolicy(connect_timeout=seconds)"
    ),
    "max": _OtherLibraryName(("count",)),
    "count": _OtherLibraryName(("limit",)),
    "duration": _OtherLibraryName(("period",), remark="in seconds"),
    "task_type": _OtherLibraryName(("name",)),
    "name": _OtherLibraryName(("task_type", "worker_id")),
}
