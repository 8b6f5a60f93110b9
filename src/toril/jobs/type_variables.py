"""The type variables of jobs and of classes that return jobs: `T` is the data of a job, `R` its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Type checkers provide this module; it is not needed at run time.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
    R = TypeVar("R")
