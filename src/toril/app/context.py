"""`Context`: what a task can know and do about the job that it runs for.

Guarantee: it is made for one attempt at one job. Its methods act on that job only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from toril.errors import InvalidOption, JobCancelled
from toril.jobs import BlockingJob, Job
from toril.jobs.base import JobBase

if TYPE_CHECKING:
    # Type checkers provide this module; it is not needed at run time.
    from typing_extensions import TypeVar as TypeVarWithDefault

    from toril.app.resources import Resources
    from toril.app.task import Task

    S = TypeVarWithDefault("S", default=Any)
else:
    S = TypeVar("S")

T = TypeVar("T")


class BaseContext(Generic[S]):
    """What `Context` and its blocking form share."""

    __slots__ = ("_job", "_resources", "_task", "values")

    def __init__(self, task: Task, job: JobBase, resources: Resources) -> None:
        self._task = task
        self._job = job
        self._resources = resources
        self.values: dict[str, Any] = {}  # for middleware: what it passes to tasks and to other middleware

    @property
    def task(self) -> Task:
        """The task that runs."""
        return self._task

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the task, as they are stored in the job."""
        return cast("Mapping[str, Any]", self._job.record.data)

    @property
    def resources(self) -> S:
        """What the lifespan of the app has yielded; None without a lifespan."""
        return cast("S", self._resources.yielded)

    def resource(self, kind: type[T]) -> T:
        """The resource of a type: what the lifespan yielded, or one of its fields."""
        return self._resources.of_type(kind)

    @property
    def attempt(self) -> int:
        """The number of this attempt; the first is 1."""
        return self._job.attempts_made + 1

    @property
    def is_last_attempt(self) -> bool:
        """Whether the job fails if this attempt fails with an error that would be retried."""
        return self.attempt >= self._job.max_attempts

    @property
    def checkpoint(self) -> Any:
        """What an earlier attempt saved last; None if it saved nothing."""
        return self._job.checkpoint

    def _check_checkpoints(self) -> None:
        if self._task.queue.kind != "bullmq":
            raise InvalidOption(
                "save_checkpoint", f"is not offered by {self._task.queue.kind} queues", "use a BullMQ queue"
            )

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, or its worker stops, or its time-out has passed."""
        return self._job.cancelled

    @property
    def lock_lost(self) -> bool:
        """Whether another worker may run the job by now: the outcome will be refused."""
        return self._job.lock_lost

    def check_cancelled(self) -> None:
        """Raises `JobCancelled` if the job was cancelled. For functions in threads, which cannot be interrupted."""
        if self._job.cancelled:
            raise JobCancelled(self._job.id, "cancelled")


class Context(BaseContext[S]):
    """The job of a task, its log and progress, and the resources of the lifespan.

    async def send(ctx: Context[Resources], to: str) -> None:
        await ctx.log("sending")
        await ctx.resources.smtp.send(to)
    """

    __slots__ = ()

    @property
    def job(self) -> Job:
        """The job itself, with all its methods."""
        return cast("Job", self._job)

    async def log(self, line: str) -> int:
        """Appends a line to the log of the job; returns how many lines it has now."""
        return await self.job.log(line)

    async def progress(self, progress: object, message: str | None = None) -> None:
        """Sets the progress: a number from 0 to 100 or an object. `message` becomes a log line."""
        await self.job.update_progress(progress, message)

    async def save_checkpoint(self, value: object) -> None:
        """Stores where this job stands; another attempt finds it in `checkpoint`. The result replaces it."""
        self._check_checkpoints()
        await self.job.save_checkpoint(value)


class BlockingContext(BaseContext[S]):
    """The same for plain functions: `toril.sync.Context`."""

    __slots__ = ("_origin",)

    def __init__(
        self,
        task: Task,
        job: BlockingJob,
        resources: Resources,
        origin: BaseContext[S] | None = None,
    ) -> None:
        super().__init__(task, job, resources)
        self._origin = origin  # the worker marks its job when it is cancelled
        if origin is not None:
            self.values = origin.values

    @property
    def job(self) -> BlockingJob:
        """The job itself, with all its methods."""
        return cast("BlockingJob", self._job)

    @property
    def cancelled(self) -> bool:
        return self._job.cancelled or (self._origin is not None and self._origin.cancelled)

    @property
    def lock_lost(self) -> bool:
        return self._job.lock_lost or (self._origin is not None and self._origin.lock_lost)

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise JobCancelled(self._job.id, "cancelled")

    def log(self, line: str) -> int:
        """Appends a line to the log of the job; returns how many lines it has now."""
        return self.job.log(line)

    def progress(self, progress: object, message: str | None = None) -> None:
        """Sets the progress: a number from 0 to 100 or an object. `message` becomes a log line."""
        self.job.update_progress(progress, message)

    def save_checkpoint(self, value: object) -> None:
        """Stores where this job stands; another attempt finds it in `checkpoint`. The result replaces it."""
        self._check_checkpoints()
        self.job.save_checkpoint(value)


def check_context_kind(name: str, kind: type[BaseContext], *, is_async: bool) -> None:
    """Raises if a coroutine function has the blocking context, or a plain function the asyncio one."""
    if is_async and kind is BlockingContext:
        raise InvalidOption(name, "is the blocking context of a coroutine function", "use toril.Context")
    if not is_async and kind is Context:
        raise InvalidOption(name, "is the asyncio context of a plain function", "use toril.sync.Context")
