"""`TaskCall`: a call of a task that was not enqueued yet.

Guarantee: its arguments were checked and encoded when it was made, so enqueuing it cannot fail because of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, Unpack

from toril.errors import InvalidOption
from toril.jobs import Job
from toril.protocol.codec import from_json, to_json
from toril.protocol.duration import Duration
from toril.protocol.json_types import JsonFields, JsonObject
from toril.protocol.option_names import knows_its_names
from toril.protocol.options import Deduplication, JobOptions, JobOptionsDict, merge

if TYPE_CHECKING:
    # Type checkers provide this module; it is not needed at run time.
    from typing_extensions import TypeVar

    from toril.app.task import Task

    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class TaskCall(Generic[R_co]):
    """A task, its arguments and the options of the job: what `task.bind` returns."""

    task: Task
    data: bytes  # the arguments as JSON
    options: JobOptions

    def __repr__(self) -> str:
        return f"<call of {self.task.name!r}>"

    @property
    def arguments(self) -> JsonObject:
        """The arguments by name, as a worker gets them, without the version."""
        decoded: JsonObject = from_json(self.data, field="data")
        return {name: value for name, value in decoded.items() if name != "_v"}

    def with_options(self, **options: Unpack[JobOptionsDict]) -> TaskCall[R_co]:
        """The same call with other options of the job."""
        return dataclasses.replace(self, options=merge(self.options, options))

    def with_arguments(self, **named: object) -> TaskCall[R_co]:
        """The same call with other values of these arguments: for middleware around enqueue."""
        data = self.task.arguments.replace(self.arguments, named)
        unique, options = self.task.settings.unique, self.options
        changed = dataclasses.replace(self, data=data)
        if unique is None or options.deduplication != unique.deduplication(self.task.name, self.arguments):
            return changed
        return changed.with_options(deduplication=unique.deduplication(self.task.name, changed.arguments))

    async def enqueue(self) -> Job[JsonObject, R_co]:
        """Adds the job."""
        return await self.task.app.enqueue(self)

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
        """Declares a scheduler that enqueues this call; a worker's start creates or changes it. See `Task.schedule`."""
        self.task.app.schedules.declare(
            self, id or self.task.name, cron=cron, every=every, tz=tz, start=start, end=end, limit=limit
        )


# --- unique calls -----------------------------------------------------------------------------------------------

UniqueKey: TypeAlias = Callable[[JsonFields], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """A call is not added while the job of an equal one has not ended, or for `ttl`.

    Equal are calls with the same values of `arguments` (None: of all), or for which `key` returns the same text.
    """

    arguments: Sequence[str] | None = None
    key: UniqueKey | None = None
    ttl: Duration | None = None  # None: until the first job has ended
    replace: bool = False  # the newest call takes the place of a delayed job
    _names: tuple[str, ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.arguments, str):
            raise InvalidOption("unique.arguments", "is a string", f"give a list: [{self.arguments!r}]")
        if self.arguments is not None and self.key is not None:
            raise InvalidOption("unique.key", "is given together with arguments", "give one of them")
        object.__setattr__(self, "_names", None if self.arguments is None else tuple(self.arguments))

    @classmethod
    def of(cls, given: bool | Sequence[str] | Unique | None) -> Unique | None:
        """`True` means by all arguments; a list of names by these."""
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        return given if isinstance(given, Unique) else cls(arguments=given)

    def check_names(self, known: Sequence[str]) -> None:
        """Raises if an argument is not one of the task's."""
        for name in self._names or ():
            if name not in known:
                raise InvalidOption("unique", f"names {name!r}", f"arguments are {', '.join(known)}")

    def deduplication(self, task: str, arguments: JsonFields) -> Deduplication:
        """The option of a job with these arguments."""
        if self.key is not None:
            return Deduplication(f"{task}:{self.key(arguments)}", self.ttl, replace=self.replace)
        chosen = arguments if self._names is None else {name: arguments.get(name) for name in self._names}
        text = to_json(dict(sorted(chosen.items())))
        return Deduplication(
            f"{task}:{hashlib.sha256(text).hexdigest()[:32]}", self.ttl, replace=self.replace
        )
