"""The options of the dashboard.

Guarantee: options under which everyone in a network could see or change queues are refused on creation.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from toril.dashboard.access import Access, Authorize, Role
from toril.errors import InvalidOption

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")

# Receives the name of a queue, what the value is (`data`, `options`, `result`, `error`, `log`) and the value.
Redact = Callable[[str, str, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """A server, and which of its queues are shown."""

    redis: object = None  # a URL or a client; None: TORIL_REDIS_URL, then the embedded server
    name: str = ""  # its name in the dashboard; needed if there are several
    queues: Sequence[str] = ()  # NAME, list:NAME or stream:NAME; empty: all that are found
    prefix: str | None = None  # None: the default of each kind
    env: str = "prod"


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardOptions:
    """What the dashboard shows, and to whom."""

    servers: Sequence[ServerOptions] = field(default_factory=lambda: (ServerOptions(),))
    allow_writes: bool = False  # False: every change is refused, whatever the role
    allowed_hosts: Sequence[str] = ()  # Host names besides loopback; "*" for any
    token: str | None = None  # people give it once in the sign-in form, programs as `Authorization: Bearer`
    basic: tuple[str, str] | None = None  # user and password of HTTP basic authentication
    proxy_user_header: str | None = None  # a header that only the reverse proxy sets, with the user's name
    role: Role | str = Role.ADMIN  # of people who are known by token, basic, proxy header, or not at all
    authorize: Authorize | None = None  # decides by itself: see `Access`
    redact: Redact | None = None  # changes values before they are shown, searched, copied or exported
    lake: str | None = None  # the folder or URL of the lake, for history and removed jobs
    lake_options: dict[str, str] = field(default_factory=dict)
    trace_url: str | None = None  # a link to a trace, with `{trace_id}`
    live_seconds: float = 2.0  # between two updates of open pages

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role(self.role))
        _check_names(self.servers)
        if not self.authenticates and any(not _is_loopback(host) for host in self.allowed_hosts):
            raise InvalidOption(
                "allowed_hosts",
                "has a public name, and there is no authentication",
                "give token=, basic=, proxy_user_header= or authorize=",
            )
        if self.token is not None and len(self.token) < 16:
            raise InvalidOption("token", "is too short to be secret", "use at least 16 characters")
        if self.trace_url is not None and "{trace_id}" not in self.trace_url:
            raise InvalidOption("trace_url", "has no {trace_id}", "write it where the id belongs")
        if not 0.1 <= self.live_seconds <= 3600:
            raise InvalidOption("live_seconds", f"is {self.live_seconds}", "give 0.1 to 3600")

    @property
    def authenticates(self) -> bool:
        """Whether requests must prove who sent them."""
        return any((self.token, self.basic, self.proxy_user_header, self.authorize))

    @property
    def anonymous(self) -> Access:
        """The rights of people on this machine if there is no authentication."""
        return Access(role=self.role, user="local")


def check_bind(host: str, options: DashboardOptions) -> None:
    """Raises unless the address is loopback or requests are authenticated."""
    if not options.authenticates and not _is_loopback(host):
        raise InvalidOption(
            "host",
            f"{host} can be reached from other machines, and there is no authentication",
            "bind to 127.0.0.1, or give a token, a password or a header of your proxy",
        )


def _is_loopback(host: str) -> bool:
    name = host.strip("[]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _check_names(servers: Sequence[ServerOptions]) -> None:
    if not servers:
        raise InvalidOption("servers", "is empty", "give at least one server")
    names = [one.name for one in servers]
    if len(servers) > 1 and (len(set(names)) < len(names) or not all(names)):
        raise InvalidOption("servers", "need different names", "give each ServerOptions a name")
    if any(":" in name for name in names):
        raise InvalidOption("servers", "have a colon in a name", "use letters, digits and dashes")
