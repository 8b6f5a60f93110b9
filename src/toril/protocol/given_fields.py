"""Options that remember which fields were given.

Guarantee: in a dataclass whose fields default to `default(…)` or `seconds(…)`, `take_defaults` replaces what
was left out by its plain value and returns the names of the rest, so "not given" and "given as the default"
stay different: only the latter overrides the defaults of a queue, and only the latter is written to Redis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, overload

T = TypeVar("T")

if TYPE_CHECKING:
    from toril.protocol.duration import Duration

    class Seconds:
        """For type checkers: a field that takes seconds or a `timedelta` and reads as seconds."""

        @overload
        def __get__(self, instance: None, owner: type) -> Seconds: ...
        @overload
        def __get__(self, instance: object, owner: type) -> float: ...
        def __get__(self, instance: object | None, owner: type) -> Any: ...
        def __set__(self, instance: object, value: Duration) -> None: ...

    class OptionalSeconds:
        """For type checkers: the same, or `None`."""

        @overload
        def __get__(self, instance: None, owner: type) -> OptionalSeconds: ...
        @overload
        def __get__(self, instance: object, owner: type) -> float | None: ...
        def __get__(self, instance: object | None, owner: type) -> Any: ...
        def __set__(self, instance: object, value: Duration | None) -> None: ...


class _Default:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Final = value

    def __repr__(self) -> str:
        return repr(self.value)


def default(value: T) -> T:
    """The default of a field, marked so that it differs from a given value."""
    return cast(T, _Default(value))


def seconds(value: float) -> Seconds:
    """The default of a duration."""
    return cast("Seconds", _Default(value))


def no_seconds() -> OptionalSeconds:
    """The default of a duration that may be absent."""
    return cast("OptionalSeconds", _Default(None))


def take_defaults(options: object, names: Iterable[str]) -> list[str]:
    """Unwraps the defaults of a frozen dataclass in place; returns the names that were given."""
    given = []
    for name in names:
        value = getattr(options, name)
        if type(value) is _Default:
            object.__setattr__(options, name, value.value)
        elif value is not None or not _is_absent(options, name):
            given.append(name)
    return given


def _is_absent(options: object, name: str) -> bool:
    """`None` for a field whose default is `None` counts as not given: `job_id=None` is no id."""
    marked = type(options).__dataclass_fields__[name].default  # type: ignore[attr-defined]
    return type(marked) is _Default and marked.value is None
