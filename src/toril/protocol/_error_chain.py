"""An error and the errors behind it: causes, contexts, wrapped errors.

Guarantee: nothing here raises and nothing runs for ever, whatever an error's attributes do: rings end, a chain is
followed for a limited number of errors, and a property that raises counts as absent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

# Errors looked at behind one error. Causes can form a ring, and nobody reads further anyway.
LONGEST_CHAIN = 50
# Arguments of an error that may be errors themselves: those that wrap one have it among the first.
_ARGUMENTS = 5
_WRAPPED_IN = ("reason", "orig", "os_error")  # urllib and urllib3, SQLAlchemy, aiohttp
# Raised by mistakes in the code that handles another error, never in order to wrap it.
_MISTAKES = (
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
    """An attribute, or `None`: some libraries raise from properties when there is nothing to give."""
    try:
        return getattr(owner, name, None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 (even SystemExit: a question must not end the worker)
        return None


def chains(error: BaseException) -> Iterator[list[BaseException]]:
    """The error with its causes, then each error hidden behind one of them with its own causes, and so on."""
    seen: set[int] = set()
    kept: list[BaseException] = []  # so that no two of them share an id
    waiting: deque[BaseException] = deque([error])
    while waiting and len(kept) < LONGEST_CHAIN:
        chain: list[BaseException] = []
        link: BaseException | None = waiting.popleft()
        while link is not None and id(link) not in seen and len(kept) < LONGEST_CHAIN:
            seen.add(id(link))
            kept.append(link)
            chain.append(link)
            link = _cause(link)
        if chain:
            yield chain
            waiting.extend(hidden for one in chain for hidden in _hidden(one))


def _cause(error: BaseException) -> BaseException | None:
    cause = read(error, "__cause__")
    return cause if isinstance(cause, BaseException) else None


def _hidden(error: BaseException) -> Iterator[BaseException]:
    """What is behind an error without being its cause."""
    context = read(error, "__context__")
    if isinstance(context, BaseException) and _cause(error) is None and not _is_mistake(error):
        yield context
    arguments = read(error, "args")
    wrapped = [*(arguments[:_ARGUMENTS] if isinstance(arguments, tuple) else ())]
    wrapped += [read(error, name) for name in _WRAPPED_IN]
    yield from (one for one in wrapped if isinstance(one, BaseException))


def _is_mistake(error: BaseException) -> bool:
    """Whether the error came up by itself while another one was handled; `raise … from None` is deliberate."""
    if read(error, "__suppress_context__") is True:
        return False
    return type(error).__module__ == "builtins" and isinstance(error, _MISTAKES)
