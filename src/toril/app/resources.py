"""The resources of an app: what its lifespan yields, for as long as a worker runs.

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Resources]:
        async with Database(url) as db:
            yield Resources(db=db)

Guarantee: the lifespan is entered before the first job runs, and left after the last one has ended, also when the start
of a worker fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from toril.errors import InvalidOption

if TYPE_CHECKING:
    from toril.app.app import App

T = TypeVar("T")

Lifespan: TypeAlias = "Callable[[App], AbstractAsyncContextManager[Any] | AsyncIterator[Any]]"
"""A function that makes the resources: with `@asynccontextmanager`, or a plain asynchronous generator."""

_NO_RESOURCES: frozenset[type] = frozenset({dict, type(None), str, int, float, bool, list, bytes})


class Resources:
    """What the lifespan yielded, and how to find a part of it by its type."""

    __slots__ = ("_by_type", "yielded")

    def __init__(self, yielded: Any = None) -> None:
        self.yielded = yielded
        self._by_type: dict[type, Any] = {}

    def set(self, yielded: Any) -> None:
        """Replaces what was yielded, at the next start."""
        self.yielded = yielded
        self._by_type.clear()

    def of_type(self, kind: type[T]) -> T:
        """What was yielded if it has this type, or its field of this type; raises if there is none."""
        if kind not in self._by_type:
            self._by_type[kind] = self._find(kind)
        found: T = self._by_type[kind]
        return found

    def _find(self, kind: type[T]) -> T:
        if isinstance(self.yielded, kind):
            return self.yielded
        for value in _parts(self.yielded):
            if isinstance(value, kind):
                return value
        given = "yielded nothing" if self.yielded is None else f"yielded a {type(self.yielded).__name__}"
        raise InvalidOption(
            "lifespan",
            f"{given} without a {kind.__name__}",
            "yield it, or an object with a field of this type",
        )


def _parts(yielded: Any) -> list[Any]:
    if isinstance(yielded, Mapping):
        return list(yielded.values())
    if dataclasses.is_dataclass(yielded):
        return [getattr(yielded, one.name) for one in dataclasses.fields(yielded)]
    if isinstance(yielded, tuple):
        return list(yielded)
    names: Iterable[str] = getattr(yielded, "__struct_fields__", ()) or getattr(yielded, "__dict__", ())
    return [getattr(yielded, name) for name in names]


def resource_types(lifespan: Lifespan | None, local_names: Mapping[str, Any]) -> frozenset[type]:
    """The types that the lifespan announces by its return annotation: what it yields, and the fields of that."""
    if lifespan is None:
        return frozenset()
    try:
        announced = typing.get_type_hints(inspect.unwrap(lifespan), localns=dict(local_names)).get("return")
    except (NameError, TypeError):
        return frozenset()  # by `Depends` and `ctx.resources` only
    kinds: set[type] = set()
    for yielded in typing.get_args(announced)[:1]:
        kinds |= _class_of(yielded)
        with contextlib.suppress(NameError, TypeError):
            for field in typing.get_type_hints(yielded, localns=dict(local_names)).values():
                kinds |= _class_of(field)
    return frozenset(kinds - _NO_RESOURCES)


def _class_of(annotation: Any) -> set[type]:
    kind = typing.get_origin(annotation) or annotation
    return {kind} if isinstance(kind, type) else set()


@contextlib.asynccontextmanager
async def resources_of(app: App, lifespan: Lifespan | None) -> AsyncIterator[Resources]:
    """Enters the lifespan; yields what it yielded."""
    if lifespan is None:
        yield Resources()
        return
    async with _entered(lifespan(app)) as yielded:
        yield Resources(yielded)


def _entered(
    made: AbstractAsyncContextManager[Any] | AsyncIterator[Any],
) -> AbstractAsyncContextManager[Any]:
    if isinstance(made, AbstractAsyncContextManager):
        return made
    if inspect.isasyncgen(made):
        return contextlib.asynccontextmanager(lambda: made)()
    raise InvalidOption(
        "lifespan", f"returned a {type(made).__name__}", "write `async def lifespan(app): …; yield resources`"
    )
