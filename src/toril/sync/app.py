"""`App` and its tasks for code without an event loop: the same names, blocking.

    app = sync.App()

    @app.task(queue="emails")
    def send(to: str) -> str: ...

    job = send.enqueue("a@b.c")
    job.result(timeout=10)

Guarantee: no logic of its own: every method is the asyncio one, awaited in the loop thread. `sync.App(app)` is the
blocking form of an app that others use with asyncio, and `sync.Task(task)` that of one of its tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from toril.app import App as AsyncApp
from toril.app import AppWorker as AsyncAppWorker
from toril.app import BlockingContext, Captured, Composition, Context, TaskCall
from toril.app import Task as AsyncTask
from toril.app.app import Queues
from toril.app.captured import Mode
from toril.app.dependencies import Provider
from toril.app.other_names import missing_attribute, missing_attribute_of_app
from toril.errors import Closed, InvalidOption
from toril.jobs import BlockingJob, BlockingJobCalls, DetachedJob
from toril.jobs import Job as AsyncJob
from toril.jobs.detached import blocking_form
from toril.protocol.duration import Duration
from toril.protocol.json_types import JsonObject
from toril.protocol.option_names import knows_its_names
from toril.protocol.options import JobOptionsDict
from toril.sync import _loop_thread
from toril.transport import BlockingTransport

P = ParamSpec("P")
Q = ParamSpec("Q")
C = TypeVar("C")
C_co = TypeVar("C_co", covariant=True)
R = TypeVar("R")


class TaskDecorator(Protocol):
    """Makes a task of a function."""

    def __call__(self, function: Callable[P, C], /) -> Task[P, C]: ...


class App:
    """The tasks of an application, blocking. Arguments are those of `toril.App`, or such an app."""

    def __init__(self, app: AsyncApp | None = None, /, **options: Any) -> None:
        if app is not None and options:
            raise InvalidOption("app", "is given together with options", "give them to toril.App")
        self.app = AsyncApp(**options) if app is None else app
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: _loop_thread.LoopThread | None = None
        self._calls: dict[str, BlockingJobCalls] = {}

    if not TYPE_CHECKING:  # type checkers report names that do not exist

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # a property that raised: raises again what it raised
            raise missing_attribute_of_app(name, blocking=True)

    def __repr__(self) -> str:
        return f"sync.{self.app!r}"

    # --- declaring ------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, C], /) -> Task[P, C]: ...
    @overload
    def task(self, **options: Any) -> TaskDecorator: ...
    # mypy does not compare keyword arguments of a decorator with those of an overload.
    def task(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:  # type: ignore[misc]
        """Makes a task of a function; see `toril.App.task`."""
        decorate = self.app.task(**options)

        def decorated(one: Callable[..., object]) -> Task[..., object]:
            return Task(decorate(one), self)

        return decorated if function is None else decorated(function)

    def queue(self, name: str, **options: Any) -> None:
        """Declares the options of a queue; see `toril.App.queue`."""
        self.app.queue(name, **options)

    # --- enqueuing ------------------------------------------------------------------------------------------

    def enqueue(self, call: TaskCall[R] | Composition[R]) -> BlockingJob[JsonObject, R]:
        """Adds the job of a call, or the jobs of a composition."""
        return self.blocking_job(self.call(call.enqueue))

    def enqueue_many(self, calls: Iterable[TaskCall[R]]) -> list[BlockingJob[JsonObject, R]]:
        """Adds the jobs of calls, in order."""
        return [self.blocking_job(job) for job in self.call(self.app.enqueue_many, calls)]

    def blocking_job(self, job: AsyncJob[JsonObject, R]) -> BlockingJob[JsonObject, R]:
        """The same job with blocking methods."""
        if isinstance(job, DetachedJob):
            made: BlockingJob[JsonObject, R] = blocking_form(job, self)
        else:
            made = BlockingJob(job.record, self._calls_of(job), added=job.added)
        codec = job.result_codec
        if codec is not None:
            made.set_result_codec(codec)
        return made

    def _calls_of(self, job: AsyncJob) -> BlockingJobCalls:
        with self._lock:
            calls = self._calls.get(job.keys.qualified)
            if calls is None:
                connection = self.app.connection
                transport = BlockingTransport(connection.address, policy=connection.policy)
                self._calls[job.keys.qualified] = calls = BlockingJobCalls(
                    transport, job.keys, codecs=job.codecs
                )
            return calls

    # --- running --------------------------------------------------------------------------------------------

    def worker(self, queues: Queues | None = None, **options: Any) -> AppWorker:
        """A worker for the tasks of these queues; see `toril.App.worker`."""
        return AppWorker(self.app.worker(queues, **options), self)

    def testing(self, mode: Mode = "inline") -> Captured:
        """A mode for tests; see `toril.App.testing`."""
        return self.app.testing(mode)

    def override(self, replacements: Mapping[Provider, Provider]) -> Any:
        """Replaces providers of dependencies, for tests; see `toril.App.override`."""
        return self.app.override(replacements)

    # --- the loop thread ------------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Awaits a coroutine function in the loop thread; returns its value or raises its error."""
        return self._acquired().call(function, *args, **named)

    def _acquired(self) -> _loop_thread.LoopThread:
        if self._pid != os.getpid():  # a forked child has a loop thread of its own, and new connections
            self._pid, self._lock, self._thread, self._calls = os.getpid(), threading.Lock(), None, {}
        with self._lock:
            if self._thread is None:
                self._thread = _loop_thread.acquire()
            return self._thread

    def close(self) -> None:
        """Closes the connections. May be called twice; the next use opens them again."""
        with self._lock:
            thread, self._thread = self._thread, None
            calls, self._calls = self._calls, {}
        for one in calls.values():
            one.transport.close()
        if thread is not None:
            try:
                thread.call(self.app.close)
            finally:
                _loop_thread.release(thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_apps: dict[int, App] = {}  # the blocking form of each app, for `Task(task)`


def _app_of(app: AsyncApp) -> App:
    found = _apps.get(id(app))
    if found is None or found.app is not app:
        _apps[id(app)] = found = App(app)
    return found


class Task(Generic[P, C_co]):
    """A function whose calls can be enqueued, blocking."""

    def __init__(self, task: AsyncTask[P, C_co], app: App | None = None) -> None:
        self.task = task  # the asyncio form
        self.app = app or _app_of(task.app)
        self.__name__ = task.__name__
        self.__qualname__ = task.__qualname__
        self.__module__ = task.__module__
        self.__doc__ = task.__doc__
        self.__wrapped__ = task.function

    def __repr__(self) -> str:
        return f"sync.{self.task!r}"

    if not TYPE_CHECKING:  # type checkers report names that do not exist

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                object.__getattribute__(self, name)  # a property that raised: raises again what it raised
            raise missing_attribute(self.__dict__.get("__name__", "task"), name, blocking=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.task.__reduce__()

    @property
    def name(self) -> str:
        """The name of its jobs."""
        return self.task.name

    @overload
    def __call__(self: Task[Concatenate[Context, Q], C], *args: Q.args, **named: Q.kwargs) -> C: ...
    @overload
    def __call__(self, *args: P.args, **named: P.kwargs) -> C_co: ...
    def __call__(self, *args: object, **named: object) -> Any:
        """Runs the function here and now."""
        return cast("Callable[..., Any]", self.task)(*args, **named)

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
        return cast("TaskCall", cast("Any", self.task).bind(*args, **named))

    @overload
    def enqueue(
        self: Task[Concatenate[Context, Q], Coroutine[Any, Any, R]], *args: Q.args, **named: Q.kwargs
    ) -> BlockingJob[JsonObject, R]: ...
    @overload
    def enqueue(
        self: Task[Q, Coroutine[Any, Any, R]], *args: Q.args, **named: Q.kwargs
    ) -> BlockingJob[JsonObject, R]: ...
    @overload
    def enqueue(
        self: Task[Concatenate[BlockingContext, Q], R], *args: Q.args, **named: Q.kwargs
    ) -> BlockingJob[JsonObject, R]: ...
    @overload
    def enqueue(self: Task[Q, R], *args: Q.args, **named: Q.kwargs) -> BlockingJob[JsonObject, R]: ...
    def enqueue(self, *args: Any, **named: Any) -> BlockingJob[JsonObject, Any]:
        """Adds a job that calls the function with these arguments; a worker runs it."""
        call: TaskCall = self.bind(*args, **named)
        return self.app.enqueue(call)

    def enqueue_many(self, calls: Iterable[TaskCall[R]]) -> list[BlockingJob[JsonObject, R]]:
        """Adds many jobs in as few calls to the server as possible, in order."""
        return self.app.enqueue_many(calls)

    def options(self, **options: Unpack[JobOptionsDict]) -> Task[P, C_co]:
        """The same task with other options of its jobs."""
        return Task(self.task.options(**options), self.app)

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
        """Declares a scheduler of this task; see `toril.app.Task.schedule`."""
        self.task.schedule(cron=cron, every=every, tz=tz, start=start, end=end, limit=limit, id=id)


class AppWorker:
    """The workers of an app in this process, blocking."""

    def __init__(self, inner: AsyncAppWorker, app: App) -> None:
        self._inner = inner
        self._app = app
        self._running_in: asyncio.AbstractEventLoop | None = (
            None  # set while `run` runs in its caller's thread
        )

    def __repr__(self) -> str:
        return f"sync.{self._inner!r}"

    @property
    def processed(self) -> int:
        """Jobs that these workers have completed."""
        return self._inner.processed

    @property
    def failed(self) -> int:
        """Jobs that failed for good in these workers."""
        return self._inner.failed

    def start(self) -> None:
        """Enters the lifespan, applies the schedules and begins to fetch jobs. May be called twice."""
        self._app.call(self._inner.start)

    def stop(self, timeout: float | None = None) -> None:
        """Fetches no more jobs, lets running ones finish within the time-out, and leaves the lifespan."""
        if self._running_in is not None:
            stopping = asyncio.run_coroutine_threadsafe(self._inner.stop(timeout), self._running_in)
            with contextlib.suppress(CancelledError):  # `run` has stopped it, and its loop has ended
                stopping.result()
        else:
            self._app.call(self._inner.stop, timeout)

    def run(self) -> None:
        """Runs in this thread until stopped or signalled, with signal handlers if it is the main one."""
        asyncio.run(self._run_here())

    async def _run_here(self) -> None:
        self._running_in = asyncio.get_running_loop()
        try:
            await self._inner.run()
        except Closed:
            return  # it was stopped while it started
        finally:
            self._running_in = None

    def run_until_idle(self) -> None:
        """Runs until no queue has jobs that wait, are active or are due for a retry."""
        self._app.call(self._inner.run_until_idle)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
