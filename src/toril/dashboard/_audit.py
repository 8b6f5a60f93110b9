"""Records acts before they happen.

Guarantee: an act whose record could not be written does not happen.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from toril.commands.audit import append_audit
from toril.dashboard._sources import QueueSource
from toril.dashboard._texts import shortened
from toril.dashboard.access import Access
from toril.errors import TorilError


@contextlib.asynccontextmanager
async def audited(
    source: QueueSource, access: Access, act: str, queue: str, detail: str = ""
) -> AsyncIterator[None]:
    """A context for an act: the record is written first, the outcome afterwards."""
    fields = {
        "user": shortened(access.user, 200) or "-",
        "role": str(access.role),
        "act": act,
        "queue": queue,
        "detail": shortened(detail, 500),
    }
    entry = await source.run(append_audit(source.prefix, fields))
    outcome = "done"
    try:
        yield
    except TorilError as error:
        outcome = shortened(f"refused: {error}", 300)
        raise
    except BaseException as error:
        outcome = f"failed: {type(error).__name__}"
        raise
    finally:
        with contextlib.suppress(TorilError):  # the act is recorded; its outcome is a convenience
            await source.run(append_audit(source.prefix, {"of": entry, "outcome": outcome}))
