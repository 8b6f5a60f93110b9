"""The addresses that pages may be loaded from.

Guarantee: an address that is not public is refused unless it was allowed, in every form: mapped into IPv6, translated,
tunnelled.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from toril.browser.options import BrowserOptions

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Addresses of IPv4 hosts as IPv6 networks write them (RFC 6052).
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
# Addresses that count as public, where clouds answer with secrets of the machine or of its network.
_METADATA = (
    ipaddress.ip_network("168.63.129.16/32"),  # Azure's host
    ipaddress.ip_network("192.0.0.0/24"),  # protocol assignments: Oracle's metadata, relays of networks
    ipaddress.ip_network("192.88.99.0/24"),  # relays of 6to4, out of use
)
# All IPv6 addresses that are assigned to the public internet. Python's tables list exceptions, and lack old ones.
_UNICAST = ipaddress.ip_network("2000::/3")


def is_public(address: Address) -> bool:
    """Returns whether the address, and every address embedded in it, is public."""
    return all(map(_is_global_unicast, _embedded_addresses(address)))


def _is_global_unicast(address: Address) -> bool:
    if address.version == 6 and address not in _UNICAST:
        return False
    if any(address in network for network in _METADATA if network.version == address.version):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _embedded_addresses(address: Address) -> Iterator[Address]:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
            return
        if address in _TRANSLATED:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
            return
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield from address.teredo
    yield address


def may_visit(host: str, address: str, options: BrowserOptions) -> bool:
    """Returns whether a connection to this address of this host is allowed."""
    if options.allows_host(host):
        return True
    parsed = ipaddress.ip_address(address.partition("%")[0])
    plain = getattr(parsed, "ipv4_mapped", None) or parsed
    return options.allows_address(plain) or is_public(parsed)
