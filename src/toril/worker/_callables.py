"""The parameters and the kind of a handler, by the code that runs when it is called.

Guarantee: decorators, partials, bound methods and callable objects are judged by the code that runs, not by the
function in `__wrapped__`; what cannot be inspected is not refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any


def takes_one_argument(handler: Callable[..., Any]) -> bool:
    """Whether the handler can be called with the job alone."""
    called = _without_signature(handler)
    if hasattr(called, "__wrapped__"):
        return True  # a wrapper written in C: it passes on all arguments
    try:
        inspect.signature(called, follow_wrapped=False).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True  # some built-ins have no signature
    return True


def is_async(handler: Callable[..., object]) -> bool:
    """Whether calling the handler returns a coroutine or an asynchronous generator."""
    return _is(handler, inspect.iscoroutinefunction) or is_async_generator(handler)


def is_async_generator(handler: Callable[..., object]) -> bool:
    """Whether calling the handler returns an asynchronous generator."""
    return _is(handler, inspect.isasyncgenfunction)


def is_generator(handler: Callable[..., object]) -> bool:
    """Whether calling the handler returns a plain generator."""
    return _is(handler, inspect.isgeneratorfunction)


def _is(handler: Callable[..., object], kind: Callable[[object], bool]) -> bool:
    """Whether the function that runs is of a kind."""
    target: object = handler
    while not kind(target):
        inner = _inner(target)
        if inner is None:
            return False
        target = inner
    return True


def wraps_async(handler: Callable[..., Any]) -> bool:
    """Whether a plain function wraps a coroutine function: it may return its coroutine."""
    target: Any = handler
    while (inner := _inner(target)) is not None:
        target = inner
    return not is_async(handler) and is_async(inspect.unwrap(target))


def _inner(target: Any) -> Any:
    """The callable that `target` calls; None when it is a function itself."""
    if isinstance(target, functools.partial):
        return target.func
    if isinstance(target, MethodType):
        return target.__func__
    return _call_of(target)


def _call_of(target: object) -> object:
    """The bound `__call__` of an object; None for functions and for callables written in C."""
    if isinstance(target, (FunctionType, type)):
        return None
    call = inspect.getattr_static(type(target), "__call__").__get__(target, type(target))
    return call if isinstance(call, (FunctionType, MethodType)) else None


def _without_signature(target: Any) -> Any:
    """The same callable without the attributes by which decorators set another signature."""
    if isinstance(target, FunctionType):
        code, names = target.__code__, target.__globals__
        bare = FunctionType(code, names, target.__name__, target.__defaults__, target.__closure__)
        bare.__kwdefaults__ = target.__kwdefaults__
        return bare
    if isinstance(target, functools.partial):
        return functools.partial(_without_signature(target.func), *target.args, **target.keywords)
    if isinstance(target, MethodType):
        return MethodType(_without_signature(target.__func__), target.__self__)
    call = _call_of(target)
    return target if call is None else _without_signature(call)
