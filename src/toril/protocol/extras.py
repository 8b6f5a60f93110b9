"""Imports of optional packages: a missing one is reported with the extra that installs it.

    with needed("prometheus"):
        from prometheus_client import Counter

Guarantee: what is missing is an `ExtraMissing`, which is an `ImportError` too: code that can do without a part of toril
goes on catching that. The error for a missing module of toril itself is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from toril.errors import ExtraMissing


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """A context for imports of packages that this extra installs."""
    try:
        yield
    except ModuleNotFoundError as error:
        # Also one of a lower package: the requested extra installs what that package needs.
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "toril"):
            raise
        raise ExtraMissing(extra, missing) from None


def require(extra: str, *modules: str) -> None:
    """Refuses a package whose modules import these ones later; they are looked for, and not imported."""
    for module in modules:
        if find_spec(module) is None:
            raise ExtraMissing(extra, module)
