"""The embedded server as an address. `toril.server` is imported only when an embedded server is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from toril.transport.address import Address, parse_address

if TYPE_CHECKING:
    from toril.server import Lease


class LeasedServer(NamedTuple):
    """An embedded server that runs at least until `release`."""

    lease: Lease

    @property
    def address(self) -> Address:
        """The address as it is now: another user of the server may have given it a port, and so a password."""
        return parse_address(self.lease.url)

    def release(self) -> None:
        """Ends this use of the server; it stops after its last use."""
        self.lease.release()


def lease_server(folder: str) -> LeasedServer:
    """Starts the server of a folder, or joins its other users."""
    from toril import server  # needed for embedded servers only

    return LeasedServer(server.lease(folder))
