"""The functions of a worker by task type.

Guarantee: only functions that were registered in code can be run. A name in a message never causes an import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

from toril.errors import InvalidOption
from toril.protocol.keys import check_text

TaskFunction = Callable[[Any], Any]
F = TypeVar("F", bound=TaskFunction)


class TaskRegistry(Mapping[str, TaskFunction]):
    """Functions by task type, to be given to a worker as its handler.

    tasks = TaskRegistry()

    @tasks.register
    async def navigate_extract(envelope): ...

    @tasks.register("send.receipt")
    def send(envelope): ...
    """

    def __init__(self) -> None:
        self._functions: dict[str, TaskFunction] = {}

    @overload
    def register(self, name: F) -> F: ...
    @overload
    def register(self, name: str | None = None) -> Callable[[F], F]: ...
    def register(self, name: Any = None) -> Any:
        """Registers a function under its own name, or under the one given; `"*"` takes all other tasks."""
        if callable(name):
            return self._add(str(getattr(name, "__name__", "")), name)
        return lambda function: self._add(function.__name__ if name is None else name, function)

    def _add(self, name: str, function: F) -> F:
        check_text("task_type", name)
        if name in self._functions and self._functions[name] is not function:
            raise InvalidOption("task_type", f"{name!r} is registered already", "give each task its own name")
        self._functions[name] = function
        return function

    def __getitem__(self, name: str) -> TaskFunction:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __repr__(self) -> str:
        return f"TaskRegistry({', '.join(sorted(self._functions))})"
