"""`Task`: a function whose calls can be enqueued as jobs.

Guarantee: on the wire a call is a plain BullMQ job: its name is the task's, its data the JSON object of the arguments.
Making a task changes neither the function nor its type: a direct call runs it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, reduce
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from toril.app._arguments import TaskArguments, Upcaster
from toril.app._caller import caller_frame
from toril.app._parameters import TaskParameters
from toril.app.call import TaskCall, Unique
from toril.app.context import BlockingContext, Context
from toril.app.middleware import EnqueueMiddleware, Middleware, check_middleware, enqueue_middleware_in
from toril.app.other_names import missing_attribute
from toril.errors import InvalidOption
from toril.jobs import Job
from toril.protocol.backoff import Backoff, BackoffFunction, is_backoff_function
from toril.protocol.classify import ErrorCategory, ErrorRule
from toril.protocol.codec import PayloadCodec
from toril.protocol.codecs import Codecs, check_codecs
from toril.protocol.duration import Duration, to_seconds
from toril.protocol.json_types import JsonObject
from toril.protocol.keys import check_text
from toril.protocol.option_names import knows_its_names
from toril.protocol.option_parts import MAX_COUNT, check_integer
from toril.protocol.options import JobOptions, JobOptionsDict, merge
from toril.protocol.queue_name import QueueName
from toril.protocol.worker_options import Executor

if TYPE_CHECKING:
    # Type checkers provide this module; it is not needed at run time.
    from typing_extensions import ParamSpec as ParamSpecWithDefault
    from typing_extensions import TypeVar as TypeVarWithDefault

    from toril.app.app import App

    P = ParamSpecWithDefault("P", default=...)
    C_co = TypeVarWithDefault("C_co", covariant=True, default=Any)
else:
    P = ParamSpec("P")
    C_co = TypeVar("C_co", covariant=True)

Q = ParamSpec("Q")
C = TypeVar("C")
R = TypeVar("R")

DEFAULT_QUEUE: Final = "default"  # of tasks that name none
Errors = Sequence[type[BaseException]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """The settings of a task, as they were given to `App.task`."""

    name: str
    queue: QueueName
    version: int = 1  # written into the data when it is above 1
    upcasters: Mapping[int, Upcaster] = field(default_factory=dict)  # by the version that they convert from
    executor: Executor = "auto"  # plain functions: in threads, or "process"
    job_timeout: Duration | None = None  # for one attempt; None: the worker's
    retry_on: Errors = ()  # errors that are worth another attempt
    fail_on: Errors = ()  # errors that are not
    error_rules: Sequence[ErrorRule] = ()  # for errors of which the class does not say enough
    retry_policy: BackoffFunction | None = None  # computes the delay before the next attempt, or gives up
    unique: Unique | None = None
    middleware: Sequence[Middleware] = ()  # inside that of the app
    codecs: Codecs | None = None  # how data, results and progress are encoded; None: as the queue says

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_integer("version", self.version, 1, MAX_COUNT)
        for version in self.upcasters:
            if version not in range(1, self.version):
                problem = f"has one for version {version}"
                raise InvalidOption("upcasters", problem, f"versions before {self.version} are converted")
        for name in ("retry_on", "fail_on"):
            object.__setattr__(self, name, _error_types(name, getattr(self, name)))
        if self.job_timeout is not None:
            seconds = to_seconds("job_timeout", self.job_timeout, positive=True)
            object.__setattr__(self, "job_timeout", seconds)
        if self.retry_policy is not None and not is_backoff_function(self.retry_policy):
            remedy = "write `def pause(attempts_made, error, job): …`"
            raise InvalidOption("retry_policy", "takes neither two arguments nor three", remedy)
        if self.codecs is not None:
            check_codecs(self.name, self.codecs)

    @classmethod
    def of(cls, function: Callable[..., Any], given: Mapping[str, Any]) -> TaskSettings:
        """The settings of a task of a function, from what was given to `App.task`."""
        name = given.get("name") or str(getattr(function, "__name__", ""))
        queue = QueueName.parse(given.get("queue") or DEFAULT_QUEUE)
        others = {one: value for one, value in given.items() if one not in ("name", "queue", "unique")}
        middleware = check_middleware("middleware", others.pop("middleware", ()))
        unique = Unique.of(given.get("unique"))
        others["upcasters"] = others.get("upcasters") or {}
        return cls(name=name, queue=queue, unique=unique, middleware=middleware, **others)

    @property
    def all_error_rules(self) -> tuple[ErrorRule, ...]:
        """The rules of this task, in the order in which they are applied."""
        own = () if not self.retry_on and not self.fail_on else (self._category_of,)
        return (*own, *self.error_rules)

    def _category_of(self, error: BaseException) -> ErrorCategory | None:
        if isinstance(error, tuple(self.fail_on)):
            return ErrorCategory.PERMANENT
        return ErrorCategory.TRANSIENT if isinstance(error, tuple(self.retry_on)) else None


def _error_types(field_name: str, given: object) -> tuple[type[BaseException], ...]:
    kinds = tuple(given) if isinstance(given, (Sequence, set, frozenset)) else (given,)
    for one in kinds:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise InvalidOption(
                field_name, f"has {one!r}", "give classes of errors: (TimeoutError, SMTPError)"
            )
    return kinds


class Task(Generic[P, C_co]):
    """A function whose calls can be enqueued. Made by `App.task`.

    `P` are the parameters of the function, and `C_co` is what a call of it returns: a coroutine, or the result. A first
    parameter that is the context is not a part of calls.
    """

    def __init__(
        self, app: App, function: Callable[..., Any], settings: TaskSettings, options: JobOptions
    ) -> None:
        self.app = app
        self.function = function
        self.settings = settings
        self.job_options = _with_policy(settings, options)
        self.enqueue_middleware: tuple[EnqueueMiddleware, ...] = enqueue_middleware_in(settings.middleware)
        self.__name__ = getattr(function, "__name__", settings.name)
        self.__qualname__ = getattr(function, "__qualname__", settings.name)
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<task {self.name!r} of {self.queue}>"

    if not TYPE_CHECKING:  # type checkers report names that do not exist

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # a property that raised: raises again what it raised
            raise missing_attribute(self.__dict__.get("__name__", "task"), name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A process imports the task by its name: functions are pickled in the same way."""
        return _imported, (self.__module__, self.__qualname__)

    @property
    def name(self) -> str:
        """The name of its jobs."""
        return self.settings.name

    @property
    def queue(self) -> QueueName:
        """The queue of its jobs."""
        return self.settings.queue

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def parameters(self) -> TaskParameters:
        """The parameters of the function: arguments and injected values."""
        try:
            parameters = TaskParameters.of(
                self.function, self.app.resource_types, _local_names(self.function)
            )
        except NameError as error:
            problem = f"has an annotation with an unknown name: {error}"
            raise InvalidOption(
                self.name, problem, "import it at run time, not for type checkers only"
            ) from error
        if self.settings.executor == "process" and parameters.needs_resources:
            problem = "runs in a process and needs a resource of the lifespan"
            raise InvalidOption(self.name, problem, "make it with a dependency that needs no resource")
        return parameters

    @cached_property
    def arguments(self) -> TaskArguments:
        """How the arguments are encoded and decoded."""
        settings = self.settings
        made = TaskArguments(self.name, self.parameters, settings.version, settings.upcasters)
        if settings.unique is not None:
            settings.unique.check_names([one.name for one in self.parameters.arguments])
        return made

    @cached_property
    def result_codec(self) -> PayloadCodec[Any] | None:
        """How a result is decoded; None if the function does not say what it returns."""
        returns = self.parameters.returns
        return None if returns is Any else PayloadCodec(type(None) if returns is None else returns)

    # --- calling --------------------------------------------------------------------------------------------

    @overload
    def __call__(self: Task[Concatenate[Context, Q], C], *args: Q.args, **named: Q.kwargs) -> C: ...
    @overload
    def __call__(self, *args: P.args, **named: P.kwargs) -> C_co: ...
    def __call__(self, *args: object, **named: object) -> Any:
        """Runs the function here and now. Values for a coroutine function that are not given are injected."""
        if self.is_async and self.parameters.injected:
            return self.app.call_here(self, args, named)
        return self.function(*args, **named)

    # --- enqueuing ------------------------------------------------------------------------------------------

    @overload
    def bind(
        self: Task[Concatenate[Context, Q], Coroutine[Any, Any, R]], *args: Q.args, **named: Q.kwargs
    ) -> TaskCall[R]: ...
    @overload
    def bind(self: Task[Q, Coroutine[Any, Any, R]], *args: Q.args, **named: Q.kwargs) -> TaskCall[R]: ...
    @overload
    def bind(
        self: Task[Concatenate[BlockingContext, Q], R], *args: Q.args, **named: Q.kwargs
    ) -> TaskCall[R]: ...
    @overload
    def bind(self: Task[Q, R], *args: Q.args, **named: Q.kwargs) -> TaskCall[R]: ...
    def bind(self, *args: object, **named: Any) -> TaskCall:
        """A call with these arguments that is not enqueued yet; the arguments are checked."""
        data = self.arguments.encode(self.arguments.bind(args, named))
        options, unique = self.job_options, self.settings.unique
        call: TaskCall = TaskCall(self, data, options)
        if unique is None or options.deduplication is not None:
            return call
        return call.with_options(deduplication=unique.deduplication(self.name, call.arguments))

    @overload
    async def enqueue(
        self: Task[Concatenate[Context, Q], Coroutine[Any, Any, R]], *args: Q.args, **named: Q.kwargs
    ) -> Job[JsonObject, R]: ...
    @overload
    async def enqueue(
        self: Task[Q, Coroutine[Any, Any, R]], *args: Q.args, **named: Q.kwargs
    ) -> Job[JsonObject, R]: ...
    @overload
    async def enqueue(
        self: Task[Concatenate[BlockingContext, Q], R], *args: Q.args, **named: Q.kwargs
    ) -> Job[JsonObject, R]: ...
    @overload
    async def enqueue(self: Task[Q, R], *args: Q.args, **named: Q.kwargs) -> Job[JsonObject, R]: ...
    async def enqueue(self, *args: Any, **named: Any) -> Job[JsonObject, Any]:
        """Adds a job that calls the function with these arguments; a worker runs it."""
        call: TaskCall = self.bind(*args, **named)
        return await self.app.enqueue(call)

    async def enqueue_many(self, calls: Iterable[TaskCall[R]]) -> list[Job[JsonObject, R]]:
        """Adds many jobs in as few calls to the server as possible, in order."""
        return await self.app.enqueue_many(calls)

    @knows_its_names("an option of a job")
    def options(self, **options: Unpack[JobOptionsDict]) -> Self:
        """The same task with other options of its jobs: `send.options(delay=60).enqueue(…)`."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)  # `copy` would follow __reduce__, to the task itself
        changed.job_options = merge(self.job_options, options)
        return changed

    @knows_its_names("an option of schedule")
    def schedule(
        self,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        id: str | None = None,
    ) -> None:
        """Declares a scheduler of this task, without arguments: with arguments use `task.bind(…).schedule(…)`.

        The start of a worker creates or changes it under the name of the task, or `id`, and removes those that this app
        declared before and does not declare any more.
        """
        missing = self.arguments.required
        if missing:
            named = ", ".join(f"{name}=…" for name in sorted(missing))
            raise InvalidOption(
                self.name,
                "has arguments without a default",
                f"write {self.__name__}.bind({named}).schedule(…)",
            )
        call: TaskCall = TaskCall(self, self.arguments.encode(self.arguments.bind((), {})), self.job_options)
        call.schedule(cron=cron, every=every, tz=tz, start=start, end=end, limit=limit, id=id)


def make_task(app: App, function: Callable[..., object], settings: TaskSettings, options: JobOptions) -> Task:
    """A task of a function. Its parameters are checked now, unless their types are defined later."""
    if not callable(function):
        raise InvalidOption("task", f"is a {type(function).__name__}", "decorate a function")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        problem = "is a generator, and a task returns one result"
        raise InvalidOption("task", problem, "save checkpoints by ctx.save_checkpoint(…) of a Context")
    is_async = inspect.iscoroutinefunction(function)
    if is_async and settings.executor not in ("auto", "async"):
        raise InvalidOption(
            "executor", f"is {settings.executor!r}", "coroutine functions run in the event loop"
        )
    if not is_async and settings.executor == "async":
        raise InvalidOption("executor", "is 'async', but the function is a plain one", "use 'auto'")
    task: Task = Task(app, function, settings, options)
    try:
        _ = task.arguments
    except InvalidOption as error:
        if not isinstance(error.__cause__, NameError):
            raise
    return task


def _local_names(function: Callable[..., object]) -> Mapping[str, object]:
    """The names in the function that defines a task, while it runs; none for tasks of modules."""
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return {}
    return caller_frame().f_locals


def _with_policy(settings: TaskSettings, options: JobOptions) -> JobOptions:
    if settings.retry_policy is None:
        return options
    if "backoff" in options.given:
        raise InvalidOption("backoff", "is given together with retry_policy", "give one of them")
    return merge(options, {"backoff": Backoff.custom(settings.name)})


def _imported(module: str, qualname: str) -> Task:
    found: Any = reduce(getattr, qualname.split("."), importlib.import_module(module))
    return found if isinstance(found, Task) else cast("Task", found.task)  # a blocking task holds its own
