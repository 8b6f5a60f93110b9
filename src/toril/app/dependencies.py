"""Dependencies: values that are made for each job and passed to its task.

    async def session(ctx: Context[Resources]) -> AsyncIterator[Session]:
        async with ctx.resources.database.session() as made:
            yield made

    @app.task(queue="orders")
    async def ship(order: int, db: Session = Depends(session)) -> None: ...

Guarantee: each dependency is made once per attempt, also if several others need it; what is after its `yield` runs when
the task has ended, in reverse order, and sees the error of the task.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar, overload

from toril.app.context import BaseContext

T = TypeVar("T")

Provider: TypeAlias = Callable[..., Any]
"""A function or generator, of coroutines or plain, that makes the value of a dependency."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """Marks a parameter whose value is made by a function."""

    provider: Provider


@overload
def depends(provider: Callable[..., AsyncIterator[T]]) -> T: ...
@overload
def depends(provider: Callable[..., Iterator[T]]) -> T: ...
@overload
def depends(provider: Callable[..., Awaitable[T]]) -> T: ...
@overload
def depends(provider: Callable[..., T]) -> T: ...
def depends(provider: Provider) -> Any:
    """The default of a parameter whose value is made by `provider` for each job.

    `provider` may have parameters of its own: the context, resources, other dependencies. Type checkers see the type of
    the value.
    """
    return Dependency(provider)


Depends: Final = depends


# --- where the value of a parameter comes from ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FromContext:
    """The context of the attempt."""


@dataclass(frozen=True, slots=True)
class FromJob:
    """The job of the attempt."""


@dataclass(frozen=True, slots=True)
class FromResources:
    """The resource of a type."""

    kind: type


@dataclass(frozen=True, slots=True, eq=False)
class FromProvider:
    """What a function makes, from parameters of its own."""

    provider: Provider
    parameters: Mapping[str, Source]


Source: TypeAlias = FromContext | FromJob | FromResources | FromProvider


class Scope:
    """The values of one attempt: each dependency is made once, and closed at the end."""

    __slots__ = ("_context", "_made", "_overrides", "_stack")

    def __init__(
        self, context: BaseContext, stack: AsyncExitStack, overrides: Mapping[Provider, Provider]
    ) -> None:
        self._context = context
        self._stack = stack
        self._overrides = overrides
        self._made: dict[Provider, object] = {}

    async def values(self, parameters: Mapping[str, Source]) -> dict[str, Any]:
        """The values of parameters, by name."""
        return {name: await self._value(source) for name, source in parameters.items()}

    async def _value(self, source: Source) -> object:
        match source:
            case FromContext():
                return self._context
            case FromJob():
                return self._context.job  # type: ignore[attr-defined]  # both contexts have one, of their kind
            case FromResources(kind):
                return self._context.resource(kind)
            case FromProvider():
                return await self._provided(source)

    async def _provided(self, source: FromProvider) -> object:
        if source.provider not in self._made:
            replacement = self._overrides.get(source.provider)
            if replacement is not None:
                self._made[source.provider] = await self._make(replacement, {})
            else:
                values = await self.values(source.parameters)
                self._made[source.provider] = await self._make(source.provider, values)
        return self._made[source.provider]

    async def _make(self, provider: Provider, values: Mapping[str, object]) -> object:
        inner = inspect.unwrap(provider)
        if inspect.isasyncgenfunction(inner):
            entered = contextlib.asynccontextmanager(provider) if provider is inner else provider
            return await self._stack.enter_async_context(entered(**values))
        if inspect.isgeneratorfunction(inner):
            entered = contextlib.contextmanager(provider) if provider is inner else provider
            return await self._enter_in_thread(entered(**values))
        if inspect.iscoroutinefunction(provider):
            return await provider(**values)
        return await asyncio.to_thread(provider, **values)  # it may block

    async def _enter_in_thread(self, manager: contextlib.AbstractContextManager[T]) -> T:
        entered = await asyncio.to_thread(manager.__enter__)

        async def leave(*failure: Any) -> bool | None:
            return await asyncio.to_thread(manager.__exit__, *failure)

        self._stack.push_async_exit(leave)
        return entered
