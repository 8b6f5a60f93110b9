"""`Batch`: how a worker collects jobs for a handler that takes many at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from toril.errors import InvalidOption
from toril.protocol.duration import to_seconds
from toril.protocol.given_fields import seconds, take_defaults
from toril.protocol.option_names import knows_its_options

if TYPE_CHECKING:
    from toril.protocol.given_fields import Seconds

BatchBy: TypeAlias = Literal["name", "group"]


@knows_its_options("a field of Batch")
@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How a worker collects jobs for a handler that takes a list of jobs."""

    size: int = 100  # jobs in a batch, at most
    wait: Seconds = seconds(0.5)  # how long fewer jobs than `size` stay in the queue; 0: not at all
    min_size: int = 1  # fewer ready jobs than this stay in the queue, however long they wait
    by: BatchBy | None = None  # all jobs of a batch have the same name, or the same group

    def __post_init__(self) -> None:
        take_defaults(self, ("wait",))
        object.__setattr__(self, "wait", to_seconds("batch.wait", self.wait))
        for name in ("size", "min_size"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidOption(f"batch.{name}", f"is {value!r}", "give an integer of at least 1")
        if self.min_size > self.size:
            raise InvalidOption("batch.min_size", f"is above size ({self.size})", "lower it")
        if self.by is not None and self.by not in get_args(BatchBy):
            raise InvalidOption("batch.by", f"is {self.by!r}", 'give "name", "group" or None')

    @property
    def waits(self) -> bool:
        """Whether jobs may stay in the queue until there are more."""
        return self.wait > 0 or self.min_size > 1
