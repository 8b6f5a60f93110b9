"""The parameters of a task: which of them are arguments of the job, and which are injected.

Guarantee: a function whose parameters can be neither is refused when it becomes a task, with the parameter's name.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toril.app.context import BaseContext, check_context_kind
from toril.app.dependencies import (
    Dependency,
    FromContext,
    FromJob,
    FromProvider,
    FromResources,
    Provider,
    Source,
)
from toril.errors import InvalidOption
from toril.jobs.base import JobBase

_DEEPEST = 50  # dependencies of dependencies; deeper ones are a loop
_NOT_BY_NAME = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter whose value is stored in the job."""

    name: str
    annotation: Any
    default: Any  # inspect.Parameter.empty: it must be given

    @property
    def is_required(self) -> bool:
        return self.default is inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class TaskParameters:
    """The parameters of a task, in order."""

    arguments: tuple[Argument, ...]
    keyword_only: frozenset[str]
    injected: Mapping[str, Source]
    returns: Any  # the annotation of the result; Any if there is none

    @classmethod
    def of(
        cls, function: Callable[..., Any], resources: frozenset[type], local_names: Mapping[str, Any]
    ) -> TaskParameters:
        """`local_names` are those of the function in which a task is defined, if it is: its types may be local."""
        reader = _Reader(resources, local_names, is_async=inspect.iscoroutinefunction(function))
        annotations = annotations_of(function, local_names)
        arguments: list[Argument] = []
        injected: dict[str, Source] = {}
        keyword_only: set[str] = set()
        for parameter in inspect.signature(function).parameters.values():
            annotation = annotations.get(parameter.name, Any)
            source = reader.source_of(parameter, annotation, 0)
            if source is not None:
                injected[parameter.name] = source
                continue
            _check_by_name(parameter)
            arguments.append(Argument(parameter.name, _type_of(annotation), parameter.default))
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                keyword_only.add(parameter.name)
        return cls(tuple(arguments), frozenset(keyword_only), injected, annotations.get("return", Any))

    @property
    def needs_resources(self) -> bool:
        """Whether a value comes from the lifespan, hence from the process of the worker."""
        return any(_uses_resources(source) for source in self.injected.values())


class _Reader:
    """Finds out where the values of parameters come from."""

    def __init__(self, resources: frozenset[type], local_names: Mapping[str, Any], *, is_async: bool) -> None:
        self._resources = resources
        self._local_names = local_names
        self._is_async = is_async

    def source_of(self, parameter: inspect.Parameter, annotation: object, depth: int) -> Source | None:
        """Where an injected value comes from; None for an argument."""
        dependency = _dependency_in(parameter, annotation)
        if dependency is not None:
            return self._provider(dependency.provider, depth + 1)
        kind = _class_of(annotation)
        if kind is None:
            return None
        if issubclass(kind, BaseContext):
            check_context_kind(parameter.name, kind, is_async=self._is_async)
            return FromContext()
        if issubclass(kind, JobBase):
            return FromJob()
        return FromResources(kind) if kind in self._resources else None

    def _provider(self, provider: Provider, depth: int) -> FromProvider:
        name = getattr(provider, "__qualname__", repr(provider))
        if not callable(provider):
            raise InvalidOption("Depends", f"has a {type(provider).__name__}", "give a function")
        if depth > _DEEPEST:
            raise InvalidOption("Depends", f"{name} depends on itself", "remove the loop")
        annotations = annotations_of(provider, self._local_names)
        sources: dict[str, Source] = {}
        for parameter in inspect.signature(provider).parameters.values():
            source = self.source_of(parameter, annotations.get(parameter.name, Any), depth)
            if source is not None:
                sources[parameter.name] = source
            elif parameter.default is inspect.Parameter.empty and parameter.kind not in _NOT_BY_NAME:
                problem = f"{name} has a parameter {parameter.name!r} that cannot be injected"
                remedy = "annotate it with Context or a type that the lifespan yields, or give it Depends(…)"
                raise InvalidOption("Depends", problem, remedy)
        return FromProvider(provider, sources)


def annotations_of(function: Callable[..., object], local_names: Mapping[str, object]) -> dict[str, object]:
    """The annotations of a function or class as types; raises `NameError` while a name in them is unknown."""
    target: object = function.__init__ if inspect.isclass(function) else function
    if not hasattr(target, "__annotations__"):  # an object that can be called
        target = type(target).__call__
    return typing.get_type_hints(target, localns=dict(local_names), include_extras=True)


def _check_by_name(parameter: inspect.Parameter) -> None:
    if parameter.kind in _NOT_BY_NAME:
        problem = "has no name in the job: arguments are stored as a JSON object"
        raise InvalidOption(parameter.name, problem, "use parameters that can be given by name")
    if parameter.name.startswith("_"):
        raise InvalidOption(
            parameter.name,
            "begins with an underscore",
            "such names of the job's data are reserved: rename it",
        )


def _dependency_in(parameter: inspect.Parameter, annotation: object) -> Dependency | None:
    if isinstance(parameter.default, Dependency):
        return parameter.default
    extras = getattr(annotation, "__metadata__", ())
    return next((one for one in extras if isinstance(one, Dependency)), None)


def _type_of(annotation: object) -> object:
    """An annotation as msgspec knows it: the extras of others do not matter to it."""
    return Any if annotation is inspect.Parameter.empty else annotation


def _class_of(annotation: Any) -> type | None:
    if hasattr(annotation, "__metadata__"):
        annotation = annotation.__origin__
    kind = typing.get_origin(annotation) or annotation
    return kind if isinstance(kind, type) else None


def _uses_resources(source: Source) -> bool:
    match source:
        case FromResources():
            return True
        case FromProvider(_, parameters):
            return any(_uses_resources(one) for one in parameters.values())
        case FromContext() | FromJob():
            return False
