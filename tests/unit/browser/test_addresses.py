"""Which addresses are public, in every way to write them."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from toril import InvalidOption
from toril.browser._addresses import is_public, may_visit
from toril.browser.options import BrowserOptions


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_addresses_of_the_public_internet_may_be_visited(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    assert may_visit("example.com", address, BrowserOptions())


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fc00::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        # Taken back long ago, never given out, or for use within one site only.
        *(
            "fec0::1",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "64:ff9b:1::7f00:1",
            "5f00::1",
            "4000::1",
            "8000::1",
        ),
        "168.63.129.16",
        "192.0.0.192",
        "192.0.0.9",
        "192.88.99.1",
        "::ffff:168.63.129.16",
        "64:ff9b::a83f:8110",
        "100.100.100.200",
        "fd00:ec2::254",
        "169.254.169.254",
    ],
)
def test_no_other_address_may_be_visited_however_it_is_written(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    assert not may_visit("example.com", address, BrowserOptions())


def test_networks_and_hosts_can_be_allowed_one_by_one() -> None:
    options = BrowserOptions(allow=("10.0.0.0/8", "fd00::/8", "Intranet.example."))
    assert may_visit("any", "10.20.30.40", options)
    assert may_visit("any", "::ffff:10.20.30.40", options)
    assert may_visit("any", "fd00::1", options)
    assert may_visit("intranet.example", "192.168.1.1", options)
    assert not may_visit("other.example", "192.168.1.1", options)
    assert not may_visit("any", "127.0.0.1", options)
    assert may_visit("any", "127.0.0.1", BrowserOptions(allow_private=True))


@pytest.mark.parametrize("allow", [("10.0.0.0/99",), ("a:b",), ("",), ("*.example",), ("a b",), "10.0.0.0/8"])
def test_what_is_neither_a_host_nor_a_network_is_refused(allow: tuple[str, ...]) -> None:
    with pytest.raises(InvalidOption, match="allow"):
        BrowserOptions(allow=allow)


@pytest.mark.parametrize("field", ["contexts", "max_page_bytes", "pages_per_browser"])
def test_numbers_below_one_are_refused(field: str) -> None:
    options: dict[str, Any] = {field: 0}
    with pytest.raises(InvalidOption, match=field):
        BrowserOptions(**options)
