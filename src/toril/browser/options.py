"""The options of the browser tasks.

Guarantee: options that exist are valid; durations are kept in seconds, sizes in bytes.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
from dataclasses import dataclass, field
from typing import Literal

from toril.errors import InvalidOption
from toril.protocol.duration import to_seconds

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
WaitUntil = Literal["commit", "domcontentloaded", "load", "networkidle"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MEGABYTE = 1024 * 1024


def find_chromium() -> str | None:
    """Returns the path of Chromium; None if there is none, then Playwright uses its own download."""
    return os.environ.get("TORIL_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowserOptions:
    """The options of the browser tasks."""

    executable: str | None = None  # None: TORIL_CHROMIUM, or the machine's Chromium
    contexts: int = 4  # pages at the same time; more jobs wait for a free one
    timeout: float = 30.0  # seconds for a whole job; a job may set less, but not more
    allow: tuple[str, ...] = ()  # hosts and networks that may be visited though they are not public
    allow_private: bool = False  # every address may be visited: for closed networks only
    max_page_bytes: int = 50 * MEGABYTE  # what one page may load, all its resources together
    max_result_bytes: int = 5 * MEGABYTE  # what one job may return
    pages_per_browser: int = 200  # then the browser is replaced: Chromium does not free all memory
    max_browser_memory: int = 1024 * MEGABYTE  # or above so many bytes, over all its processes
    max_open_memory: int = 2048 * MEGABYTE  # bytes above which it is killed while pages are open
    viewport: tuple[int, int] = (1280, 800)
    user_agent: str | None = None  # None: Chromium's own
    java_script: bool = True

    _hosts: frozenset[str] = field(init=False, repr=False)
    _networks: tuple[Network, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "timeout", to_seconds("timeout", self.timeout, positive=True))
        for name in (
            "contexts",
            "max_page_bytes",
            "max_result_bytes",
            "pages_per_browser",
            "max_browser_memory",
            "max_open_memory",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidOption(name, f"is {value!r}", "give an integer of at least 1")
        allow: object = self.allow
        if isinstance(allow, str):
            raise InvalidOption("allow", "is one string", 'give a tuple, such as ("10.0.0.0/8",)')
        networks, hosts = _networks_and_hosts(self.allow)
        object.__setattr__(self, "_hosts", hosts)
        object.__setattr__(self, "_networks", networks)

    def allows_host(self, host: str) -> bool:
        """Returns whether the host is allowed by its name, with any address."""
        return self.allow_private or host.lower().rstrip(".") in self._hosts

    def allows_address(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        """Returns whether the address is in an allowed network."""
        return any(address in network for network in self._networks if network.version == address.version)


def _networks_and_hosts(allowed: tuple[str, ...]) -> tuple[tuple[Network, ...], frozenset[str]]:
    networks: list[Network] = []
    hosts: list[str] = []
    for each in allowed:
        try:
            networks.append(ipaddress.ip_network(each, strict=False))
        except ValueError:
            if not each or any(sign in each for sign in "/:*? "):
                problem = f"{each!r} is neither a host name nor a network"
                raise InvalidOption("allow", problem, 'write "intranet.example" or "10.0.0.0/8"') from None
            hosts.append(each.lower().rstrip("."))
    return tuple(networks), frozenset(hosts)
