"""The embedded server as an address: leased from `toril.server`, which is loaded only when somebody asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toril.transport.address import Address, parse_address


@dataclass(slots=True)
class Lease:
    """Our share in an embedded server; it may end when the last share is released."""

    address: Address
    _share: Any

    def release(self) -> None:
        self._share.release()


def lease(folder: str) -> Lease:
    """Starts the server of a folder, or joins those who use it already."""
    from toril import server  # loads nothing but the standard library, yet only embedded users need it

    share = server.lease(folder)
    return Lease(parse_address(share.url), share)
