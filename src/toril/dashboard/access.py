"""Who may do what: roles, and the queues that a person may see.

Guarantee: a role includes the ones before it. A queue that is not granted is neither shown nor changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from starlette.requests import Request


class Role(StrEnum):
    """What a person may do; each role includes the ones before it."""

    VIEWER = "viewer"  # looks
    OPERATOR = "operator"  # adds, retries, promotes, cancels and removes jobs; pauses and resumes queues
    ADMIN = "admin"  # cleans, drains and obliterates queues; sets limits; edits schedulers

    def includes(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rights of one person: a role, and the queues it holds for.

    `queues` are names or patterns (`emails`, `list:*`, `team-a-*`); None: all queues.
    """

    role: Role | str = Role.VIEWER
    queues: tuple[str, ...] | None = None
    user: str = ""  # the name in the audit

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role(self.role))
        if self.queues is not None:
            object.__setattr__(self, "queues", tuple(self.queues))

    def may(self, role: Role) -> bool:
        return Role(self.role).includes(role)

    def sees(self, label: str) -> bool:
        """Whether a queue, by the name it has in the dashboard, is granted."""
        return self.queues is None or any(fnmatchcase(label, one) for one in self.queues)


# Returns the rights of the person who sent the request; None refuses it.
Authorize: TypeAlias = "Callable[[Request], Access | Awaitable[Access | None] | None]"
