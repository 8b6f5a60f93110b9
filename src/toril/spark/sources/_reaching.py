"""The first contact with a server, made by the driver before tasks begin.

Guarantee: an address that is wrong is said within seconds and with a remedy, not by a task after minutes of trying.
"""

from __future__ import annotations

import os
from typing import Final

from toril.contract.errors import StoreError, StoreUnavailable
from toril.store import BlockingStore, ConnectionPolicy
from toril.store.address import DEFAULT_URL, parse_address

# Tasks are patient with a server that is busy; whoever has just typed an address wants to know at once.
_FIRST_CONTACT: Final = ConnectionPolicy(connect_timeout=5.0, command_timeout=5.0, call_attempts=2)
_REMEDY: Final = (
    'check option("url", …) or TORIL_REDIS_URL, that the server runs and is reachable from the driver and the '
    "executors, and rediss:// if it speaks TLS"
)


def resolved_url(url: str | None) -> str:
    """The address that an option names, or the one of this process's environment, checked.

    It is settled on the driver: executors on other machines have another environment.
    """
    found = url if url is not None else os.environ.get("TORIL_REDIS_URL") or DEFAULT_URL
    parse_address(found)
    return found


def reach(url: str | None) -> None:
    """Asks the server for its time; an error says whom we tried to reach and what to look at."""
    with BlockingStore(url, policy=_FIRST_CONTACT) as store:
        try:
            store.connect()
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{store.address.label}: {error}", hint=_REMEDY) from None
        except StoreError as error:
            raise type(error)(f"{store.address.label}: {error}", hint="") from None
