"""What a handler takes: a job, a batch of pandas or Arrow, or a DataFrame of Spark.

Guarantee: a handler that no engine can run is refused when the worker is made, with a remedy.
"""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from toril.errors import InvalidOption
from toril.spark.worker.app_reference import app_of
from toril.spark.worker.options import Engine, Takes

Shape: TypeAlias = Literal["job", "app", "pandas", "arrow", "dataframe"]
ChosenEngine: TypeAlias = Literal["loop", "rows"]


def shape_of(handler: object, takes: Takes) -> Shape:
    """What the handler takes: as told, or by the annotation of its first argument; without one, a job."""
    if app_of(handler) is not None:
        return _shape_of_app(takes)
    if takes != "auto":
        return takes
    if isinstance(handler, Mapping):
        return "job"
    if not callable(handler):
        problem = f"is a {type(handler).__name__}"
        raise InvalidOption("handler", problem, "give a function of one argument, or a mapping of them")
    return _shape_of_type(_first_annotation(handler))


def _shape_of_app(takes: Takes) -> Shape:
    if takes != "auto":
        raise InvalidOption(
            "takes", f"is {takes!r} beside an app", "leave it out: tasks take their arguments"
        )
    return "app"


def engine_of(shape: Shape, engine: Engine) -> ChosenEngine:
    """The engine for a handler; raises when the one that is asked for cannot run it."""
    if shape == "dataframe" and engine == "loop":
        raise InvalidOption("engine", "is 'loop', but the handler takes a DataFrame", "use 'rows' or 'auto'")
    if shape != "dataframe" and engine == "rows":
        what = {"job": "a job", "app": "the arguments of tasks"}.get(shape, f"a batch of {shape}")
        remedy = "use 'loop' or 'auto', or write a function of a DataFrame of Spark that calls mapInPandas"
        raise InvalidOption("engine", f"is 'rows', but the handler takes {what}", remedy)
    if engine == "auto":
        return "rows" if shape == "dataframe" else "loop"
    return engine


def _first_annotation(handler: Any) -> Any:
    target = handler if inspect.isroutine(handler) or inspect.isclass(handler) else type(handler).__call__
    try:
        names = list(inspect.signature(handler).parameters)
    except (TypeError, ValueError):
        return None
    hints = getattr(target, "__annotations__", {})
    with contextlib.suppress(Exception):  # names that exist for type checkers only
        hints = typing.get_type_hints(target)
    return hints.get(names[0]) if names else None


def _shape_of_type(annotation: object) -> Shape:
    if isinstance(annotation, str):
        module, _, name = annotation.rpartition(".")
    else:
        module = getattr(annotation, "__module__", "")
        name = getattr(annotation, "__name__", "")
    package = module.partition(".")[0]
    if name == "DataFrame" and package in ("pandas", "pd"):
        return "pandas"
    if name == "DataFrame" and package in ("pyspark", ""):
        return "dataframe"
    if name in ("Table", "RecordBatch") and package in ("pyarrow", "pa", ""):
        return "arrow"
    return "job"
