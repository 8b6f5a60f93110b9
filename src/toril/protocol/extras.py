"""Parts of toril that need more than its core say, where they are imported, what is missing and how to get it.

    with needed("prometheus"):
        from prometheus_client import Counter

Guarantee: what is missing is an `ExtraMissing`, which is an `ImportError` too: code that can do without a part of toril
goes on catching that. A module that is missing in toril itself stays the error that it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toril.errors import ExtraMissing


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Around imports of packages that this extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        # Also one of a room below: the extra that was asked for brings along what that room needs.
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "toril"):
            raise
        raise ExtraMissing(extra, missing) from None
