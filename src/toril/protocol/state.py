"""Where a job is, and how many are where.

Guarantee: the names are Node's; the keys of the states are in `JobState.suffix` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from toril.errors import InvalidOption


class JobState(StrEnum):
    """The state of a job, spelled as Node's `getState` and `getJobCounts` do."""

    WAITING = "waiting"
    PRIORITIZED = "prioritized"
    ACTIVE = "active"
    DELAYED = "delayed"
    WAITING_CHILDREN = "waiting-children"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"  # the job is in no list: removed, or never added

    @property
    def suffix(self) -> str:
        """The key of this state, without the queue: `wait` for waiting, otherwise the name."""
        return "wait" if self is JobState.WAITING else self.value

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.COMPLETED, JobState.FAILED)

    @classmethod
    def parse(cls, name: object) -> JobState:
        """The state of that name; `wait` and `waiting_children` are understood, too."""
        text = str(name).replace("_", "-")
        try:
            return cls("waiting" if text == "wait" else text)
        except ValueError:
            known = ", ".join(state.value for state in COUNTED_STATES)
            raise InvalidOption("state", f"there is no state {text!r}", f"choose one of {known}") from None


# The states that hold jobs, in the order of Node's `getJobCounts`.
COUNTED_STATES = (
    JobState.ACTIVE,
    JobState.COMPLETED,
    JobState.DELAYED,
    JobState.FAILED,
    JobState.PAUSED,
    JobState.PRIORITIZED,
    JobState.WAITING,
    JobState.WAITING_CHILDREN,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCounts:
    """How many jobs a queue holds in each state, at one moment."""

    waiting: int = 0
    prioritized: int = 0
    active: int = 0
    delayed: int = 0
    waiting_children: int = 0
    paused: int = 0
    completed: int = 0
    failed: int = 0

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> JobCounts:
        """Counts by Node's names (or toril's)."""
        return cls(
            **{JobState.parse(state).value.replace("-", "_"): count for state, count in counts.items()}
        )

    @property
    def ready(self) -> int:
        """Jobs that a worker could fetch now."""
        return self.waiting + self.prioritized

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        return self.total - self.completed - self.failed

    @property
    def total(self) -> int:
        """All jobs of the queue."""
        return sum(self.as_dict().values())

    def __getitem__(self, state: str) -> int:
        count: int = getattr(self, JobState.parse(state).value.replace("-", "_"))
        return count

    def as_dict(self) -> dict[str, int]:
        """By Node's names, in the order of `COUNTED_STATES`."""
        return {
            "active": self.active,
            "completed": self.completed,
            "delayed": self.delayed,
            "failed": self.failed,
            "paused": self.paused,
            "prioritized": self.prioritized,
            "waiting": self.waiting,
            "waiting-children": self.waiting_children,
        }
