"""An error and the errors in it: causes, contexts, wrapped errors.

Guarantee: nothing here raises and nothing runs for ever, whatever an error's attributes do: cycles end, a chain is
followed for a limited number of errors, and a property that raises counts as absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

# Errors read within one error: causes can form a cycle, and more add nothing.
LONGEST_CHAIN = 50
# Arguments of an error that are read: errors that wrap another have it among the first.
_ARGUMENTS = 5
_WRAPPED_IN = ("reason", "orig", "os_error")  # urllib and urllib3, SQLAlchemy, aiohttp
# Raised by defects in the code that handles another error, never in order to wrap it.
_PROGRAMMING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


def read(owner: object, name: str) -> Any:
    """Returns an attribute, or `None`: properties of some libraries raise when they have no value."""
    try:
        return getattr(owner, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 (even SystemExit: reading an attribute must not end the worker)
        return None


def chains(error: BaseException) -> Iterator[list[BaseException]]:
    """Yields the error with its causes, then each error within one of them with its own causes, and so on."""
    seen: set[int] = set()
    visited: list[BaseException] = []  # references, so that no two of them get one id
    waiting: deque[BaseException] = deque([error])
    while waiting and len(visited) < LONGEST_CHAIN:
        chain: list[BaseException] = []
        link: BaseException | None = waiting.popleft()
        while link is not None and id(link) not in seen and len(visited) < LONGEST_CHAIN:
            seen.add(id(link))
            visited.append(link)
            chain.append(link)
            link = _cause(link)
        if chain:
            yield chain
            waiting.extend(inner for one in chain for inner in _inner_errors(one))


def _cause(error: BaseException) -> BaseException | None:
    cause = read(error, "__cause__")
    return cause if isinstance(cause, BaseException) else None


def _inner_errors(error: BaseException) -> Iterator[BaseException]:
    """Yields errors within an error that are not its cause."""
    context = read(error, "__context__")
    if isinstance(context, BaseException) and _cause(error) is None and not _is_programming_error(error):
        yield context
    arguments = read(error, "args")
    wrapped = [*(arguments[:_ARGUMENTS] if isinstance(arguments, tuple) else ())]
    wrapped += [read(error, name) for name in _WRAPPED_IN]
    yield from (one for one in wrapped if isinstance(one, BaseException))


def _is_programming_error(error: BaseException) -> bool:
    """Returns whether the error is a defect in the handling of another one; `raise … from None` is deliberate."""
    if read(error, "__suppress_context__") is True:
        return False
    return type(error).__module__ == "builtins" and isinstance(error, _PROGRAMMING_ERRORS)
