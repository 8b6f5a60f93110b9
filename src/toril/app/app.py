"""`App`: the tasks of an application, their queues, resources and middleware.

    app = App(lifespan=lifespan, middleware=[db_session])
    app.queue("emails", concurrency=50)

    @app.task(queue="emails", attempts=5, job_timeout=30)
    async def send(to: str, subject: str = "Hello") -> Receipt: ...

    job = await send.enqueue("a@b.c", subject="Hi")
    receipt = await job.result(timeout=10)

Guarantee: an app connects at its first use. `Queue` and `Worker` run below it, unchanged: other clients can add jobs of
its tasks, and run them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from toril.app import _direct_call
from toril.app._call_sender import AnyJob, CallSender, QueueCallSender
from toril.app._caller import caller_frame
from toril.app._codecs import queue_codecs
from toril.app._flow_middleware import enqueue_through_middleware
from toril.app._producers import Connection, Producers
from toril.app._queue_options import AnyQueue, AnyWorker, QueueOptions, QueueOptionsDict, all_names
from toril.app._runner import TaskRunner
from toril.app._schedules import Schedules
from toril.app.call import TaskCall, Unique
from toril.app.captured import Captured, Mode
from toril.app.composition import CallNode
from toril.app.dependencies import Provider
from toril.app.middleware import (
    EnqueueMiddleware,
    Middleware,
    around_enqueue,
    check_middleware,
    enqueue_middleware_in,
)
from toril.app.other_names import missing_attribute_of_app
from toril.app.resources import Lifespan, Resources, resource_types, resources_of
from toril.app.settings import naming_places, options_from_outside
from toril.app.task import Errors, Task, TaskSettings, make_task
from toril.app.worker import AppWorker
from toril.errors import InvalidOption, UnknownOption
from toril.jobs import Job
from toril.producer import FlowProducer
from toril.protocol.backoff import BackoffFunction
from toril.protocol.classify import ErrorRule
from toril.protocol.codecs import Codecs, GivenCodecs
from toril.protocol.duration import Duration
from toril.protocol.json_types import JsonObject
from toril.protocol.keys import check_text
from toril.protocol.option_names import knows_its_names, knows_its_options, refuse_unknown
from toril.protocol.options import JobOptions, JobOptionsDict
from toril.protocol.queue_name import QueueName
from toril.protocol.worker_options import Executor, WorkerOptions
from toril.transport import ConnectionPolicy

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")

# Of `App.task`, beside those of jobs: for the remedy of an unknown name.
_TASK_OPTIONS: Final = tuple(TaskSettings.__dataclass_fields__)
Queues = Sequence[str] | Mapping[str, int | None]


def _refuse_unknown_of_task(options: Iterable[str]) -> None:
    known = (*JobOptionsDict.__annotations__, *_TASK_OPTIONS)
    for name in all_names().intersection(options).difference(known):
        raise UnknownOption(
            name, "is not an option of a task", f"it belongs to the queue: app.queue(name, {name}=…)"
        )
    refuse_unknown(options, known, "an option of a task")


class TaskDecorator(Protocol):
    """Makes a task of a function."""

    def __call__(self, function: Callable[P, C], /) -> Task[P, C]: ...


@knows_its_options("an argument of App")
class App:
    """The tasks of an application. Options of queues and workers that are given here are defaults of all queues."""

    def __init__(
        self,
        *,
        name: str | None = None,
        redis: object = None,
        policy: ConnectionPolicy | None = None,
        lifespan: Lifespan | None = None,
        middleware: Sequence[Middleware] = (),
        enqueue_middleware: Sequence[EnqueueMiddleware] = (),
        **options: Unpack[QueueOptionsDict],
    ) -> None:
        """`name` marks the schedulers of this app; default: the module that makes it. For `redis` see `Queue`.

        `middleware` is around jobs, and around enqueue if it has a method `enqueue`; `enqueue_middleware` are functions
        around enqueue only, inside of it.
        """
        refuse_unknown(options, sorted({*all_names(), "redis", "policy"}), "an option of App")
        self.name = check_text("name", name or _caller_module())
        self.lifespan = lifespan
        self.resource_types = resource_types(lifespan, caller_frame().f_locals)
        self.middleware: tuple[Middleware, ...] = check_middleware("middleware", middleware)
        self.enqueue_middleware: tuple[EnqueueMiddleware, ...] = (
            *enqueue_middleware_in(self.middleware),
            *check_middleware("enqueue_middleware", enqueue_middleware),
        )
        self._defaults: dict[str, Any] = dict(options)
        self._queues: dict[QueueName, QueueOptions] = {}
        self._tasks: dict[str, Task] = {}
        self._overrides: dict[Provider, Provider] = {}
        self._entered: list[Resources] = []  # of lifespans of this app that are entered now
        self.connection: Final = Connection(redis, policy)
        self.producers: Final = Producers(self.connection, self)
        self.schedules: Final = Schedules(self.name, self.producers)
        self.call_sender: CallSender = QueueCallSender(self.producers)

    def __repr__(self) -> str:
        return f"<app {self.name!r} with {len(self._tasks)} tasks>"

    if not TYPE_CHECKING:  # type checkers report names that do not exist

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # a property that raised: raises again what it raised
            raise missing_attribute_of_app(name)

    @knows_its_names("an option of App")
    def configure(self, *, redis: object = None, **options: Unpack[QueueOptionsDict]) -> None:
        """Changes the server and the defaults of queues, before the first use: for tests and late settings."""
        refuse_unknown(options, sorted(all_names()), "an option of App")
        if redis is not None:
            self.connection.move(redis)
        self._defaults.update(options)

    @contextlib.contextmanager
    def configured(self, *, redis: object, **options: Unpack[QueueOptionsDict]) -> Iterator[None]:
        """Another server, and other defaults of queues, for a block: for tests."""
        before = self.connection.choice, dict(self._defaults)
        self.configure(redis=redis, **options)
        try:
            yield
        finally:
            self.connection.move(before[0])
            self._defaults = before[1]

    # --- declaring ------------------------------------------------------------------------------------------

    @knows_its_names("an option of a queue")
    def queue(self, name: str, **options: Unpack[QueueOptionsDict]) -> None:
        """Declares the options of a queue: those of `Queue` and `Worker`, or of their list and stream forms."""
        queue = QueueName.parse(name)
        if queue in self._queues:
            raise InvalidOption("queue", f"{name!r} is declared already", "give all its options at once")
        self._queues[queue] = QueueOptions(queue, dict(options))

    def queue_options(self, queue: QueueName) -> QueueOptions:
        """The options of a queue, with the defaults of the app, the environment and pyproject.toml."""
        said = self._queues.get(queue, QueueOptions(queue)).with_defaults(self._defaults)
        with naming_places(queue, said.fields):
            options = said.with_defaults(options_from_outside(queue))
        codecs = queue_codecs(queue, self._tasks.values(), self._configured_codecs)
        return options if codecs is None else options.with_codecs(codecs)

    def _configured_codecs(self, queue: QueueName) -> GivenCodecs:
        options = self._queues.get(queue, QueueOptions(queue)).with_defaults(self._defaults)
        return cast("GivenCodecs", options.fields.get("codecs"))

    @overload
    def task(self, function: Callable[P, C], /) -> Task[P, C]: ...
    @overload
    def task(
        self,
        *,
        queue: str = ...,
        name: str | None = ...,
        version: int = ...,
        upcasters: Mapping[int, Callable[[JsonObject], Mapping[str, Any]]] | None = ...,
        executor: Executor = ...,
        job_timeout: Duration | None = ...,
        retry_on: Errors = ...,
        fail_on: Errors = ...,
        error_rules: Sequence[ErrorRule] = ...,
        retry_policy: BackoffFunction | None = ...,
        unique: bool | Sequence[str] | Unique | None = ...,
        middleware: Sequence[Middleware] = ...,
        codecs: Codecs | None = ...,
        **options: Unpack[JobOptionsDict],
    ) -> TaskDecorator: ...
    # mypy does not compare the names in Unpack with those of Any.
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Makes a task of a function: `@app.task`, or `@app.task(queue=…, …)` with the options of its jobs.

        `name` is the name of its jobs (default: that of the function), `queue` their queue (default: "default"). The
        other options are the fields of `TaskSettings` and of `JobOptions`.
        """
        _refuse_unknown_of_task(options)
        own = {name: value for name, value in options.items() if name in _TASK_OPTIONS}
        job_options = JobOptions.of({name: options[name] for name in options if name not in own})

        def decorate(decorated: Callable[..., object]) -> Task:
            return self._add(make_task(self, decorated, TaskSettings.of(decorated, own), job_options))

        return decorate if function is None else decorate(function)

    def _add(self, task: Task) -> Task:
        if task.name in self._tasks:
            raise InvalidOption("name", f"{task.name!r} is the name of another task", "give each its own")
        self._tasks[task.name] = task
        return task

    @property
    def tasks(self) -> Mapping[str, Task]:
        """The tasks by name."""
        return self._tasks

    @property
    def queues(self) -> list[QueueName]:
        """The queues that have tasks."""
        return list(dict.fromkeys(task.queue for task in self._tasks.values()))

    # --- enqueuing ------------------------------------------------------------------------------------------

    async def enqueue(self, call: TaskCall[R]) -> Job[JsonObject, R]:
        """Adds the job of a call."""
        return await around_enqueue(self._middleware_of(call), call, self._send_one)

    async def enqueue_many(self, calls: Iterable[TaskCall[R]]) -> list[Job[JsonObject, R]]:
        """Adds the jobs of calls, also of different tasks, in order. Calls of one queue are sent in one step."""
        given = list(calls)
        for call in given:
            if not isinstance(call, TaskCall):
                raise InvalidOption("calls", f"hold a {type(call).__name__}", "give task.bind(…)")
        if not given:
            return []
        if any(self._middleware_of(call) for call in given):
            return list(await asyncio.gather(*(self.enqueue(call) for call in given)))
        return await self.call_sender.send(given)

    async def enqueue_flow(self, root: CallNode) -> Job[JsonObject, Any]:
        """Adds calls that depend on each other; see `chain` and `parallel_then`."""
        if any(self._middleware_of(node.call) for node in root.walk()):
            return await enqueue_through_middleware(root, self._middleware_of, self.call_sender.send_flow)
        return (await self.call_sender.send_flow(root))[-1]

    def _middleware_of(self, call: TaskCall) -> tuple[EnqueueMiddleware, ...]:
        return self.enqueue_middleware + call.task.enqueue_middleware

    async def _send_one(self, call: TaskCall) -> AnyJob:
        (job,) = await self.call_sender.send([call])
        return job

    def get_queue(self, name: str) -> AnyQueue:
        """The queue of this name in the running event loop: `Queue`, `ListQueue` or `StreamQueue`."""
        return self.producers.queue(QueueName.parse(name))

    def get_flow_producer(self) -> FlowProducer:
        """The flow producer of this app in the running event loop."""
        return self.producers.flows(
            str(self._defaults.get("prefix", "bull")), cast("bool | None", self._defaults.get("hash_tag"))
        )

    # --- running --------------------------------------------------------------------------------------------

    @knows_its_names("an option of a worker")
    def worker(self, queues: Queues | None = None, **options: Unpack[QueueOptionsDict]) -> AppWorker:
        """A worker for the tasks of these queues, by default of all.

        `queues` may be a mapping to the concurrency of each: `{"emails": 50, "images": 4}`. `options` come before those
        that were declared for the queues.
        """
        resources = Resources()
        chosen = self._chosen_queues(queues, options)
        workers = {name: self._make_worker(one, resources) for name, one in chosen.items()}
        return AppWorker(self, resources, workers)

    def _chosen_queues(
        self, queues: Queues | None, options: Mapping[str, Any]
    ) -> dict[QueueName, QueueOptions]:
        if isinstance(queues, str):
            raise InvalidOption("queues", "is one string", f"give a list: [{queues!r}]")
        names = [QueueName.parse(one) for one in queues] if queues is not None else self.queues
        if not names:
            raise InvalidOption(
                "queues", "are none: the app has no tasks", "decorate functions with @app.task"
            )
        for name in names:
            if name not in self.queues:
                known = ", ".join(str(one) for one in self.queues)
                raise InvalidOption("queues", f"{name} has no tasks", f"queues with tasks are {known}")
        given = queues if isinstance(queues, Mapping) else {}
        each = {QueueName.parse(one): number for one, number in given.items() if number is not None}
        chosen = {}
        for name in names:
            own = {"concurrency": each[name]} if name in each else {}
            configured = self.queue_options(name).fields
            chosen[name] = QueueOptions(name, own).with_defaults(options).with_defaults(configured)
        return chosen

    def _make_worker(self, options: QueueOptions, resources: Resources) -> AnyWorker:
        handlers = {
            task.name: self.runner(task, resources).handler()
            for task in self._tasks.values()
            if task.queue == options.queue
        }
        return options.make_worker(handlers, self.connection.address, self.connection.policy)

    def worker_options(self, queue: QueueName) -> WorkerOptions:
        """The options of workers of a queue."""
        return self.queue_options(queue).worker_options

    def runner(self, task: Task, resources: Resources) -> TaskRunner:
        """Runs a task with the middleware of this app."""
        return TaskRunner(task, self.middleware, resources, self._overrides)

    @contextlib.asynccontextmanager
    async def lifespan_entered(self, resources: Resources | None = None) -> AsyncIterator[Resources]:
        """Enters the lifespan; direct calls and inline runs use its resources until it is left."""
        async with contextlib.AsyncExitStack() as stack:
            self.producers.acquire()
            stack.push_async_callback(self.producers.release)  # queues that tasks have opened
            entered = await stack.enter_async_context(resources_of(self, self.lifespan))
            own = resources if resources is not None else Resources()
            own.set(entered.yielded)
            self._entered.append(own)
            try:
                yield own
            finally:
                self._entered.remove(own)

    @contextlib.asynccontextmanager
    async def current_resources(self) -> AsyncIterator[Resources]:
        """The resources of the lifespan that is entered, or of one for this block only."""
        if self._entered:
            yield self._entered[-1]
        else:
            async with resources_of(self, self.lifespan) as resources:
                yield resources

    async def call_here(self, task: Task, args: tuple[object, ...], named: Mapping[str, object]) -> object:
        """Runs a task in this task of asyncio, without a job; see `Task`."""
        async with self.current_resources() as resources:
            return await _direct_call.call(task, args, named, resources, self._overrides)

    def testing(self, mode: Mode = "inline") -> Captured:
        """A mode for tests: "inline" runs what is enqueued at once, "capture" runs nothing. Both record the calls.

        with app.testing("capture") as captured:
            await register("a@b.c")
        captured.assert_enqueued(send, to="a@b.c")
        """
        return Captured(self, mode)

    @contextlib.contextmanager
    def override(self, replacements: Mapping[Provider, Provider]) -> Iterator[None]:
        """Replaces providers of dependencies, for tests: `with app.override({session: fake_session}): …`."""
        before = dict(self._overrides)
        self._overrides.update(replacements)
        try:
            yield
        finally:
            self._overrides.clear()
            self._overrides.update(before)

    # --- closing --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes the queues that were opened in the running event loop. May be called twice."""
        await self.producers.close()

    async def __aenter__(self) -> Self:
        self.producers.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.producers.release()  # the queues are closed with the last block and the last worker


def _caller_module() -> str:
    """The module that makes an app: its name is the same in every process of the application."""
    names = caller_frame().f_globals
    module = str(names.get("__name__", "app"))
    return Path(str(names.get("__file__", "app"))).stem if module in ("__main__", "__mp_main__") else module
