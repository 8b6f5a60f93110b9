"""What a page is made from: the request, the person, the servers, and links.

Guarantee: a link has the path under which the dashboard is mounted; a value in it cannot change which page it leads to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote_plus

from starlette.requests import Request

from toril.dashboard._history import History
from toril.dashboard._sources import ShownQueue, Sources
from toril.dashboard._texts import name_of_url_part, url_part
from toril.dashboard.access import Access, Role
from toril.dashboard.options import DashboardOptions


def quoted(text: str) -> str:
    """Returns a value for the query of a link."""
    return text if text.isascii() and text.isalnum() else quote_plus(text, errors="replace")


class PageNotFound(Exception):
    """There is no such page, queue or job, or it is not granted."""


@dataclass(frozen=True, slots=True)
class Links:
    """Makes links below the path under which the dashboard is mounted."""

    root: str

    def __call__(self, *parts: str, **query: object) -> str:
        """Returns a link: parts of the path are names, and empty values of the query are left out."""
        path = "/".join(map(url_part, parts))
        # A lone surrogate has no bytes of its own: such a link leads to a page that says so.
        words = "&".join(
            f"{name}={quoted(str(value))}"
            for name, value in query.items()
            if value is not None and value is not False and value != ""
        )
        return f"{self.root}/{path}?{words}" if words else f"{self.root}/{path}"

    def static(self, file: str) -> str:
        return f"{self.root}/static/{file}"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A request for a page, or for the live part of one."""

    request: Request
    access: Access
    sources: Sources
    options: DashboardOptions
    history: History
    is_request: bool = True
    parts: Any  # the services of the dashboard: operations, audit, failures, findings

    @property
    def link(self) -> Links:
        return Links(self.request.scope.get("root_path", "").rstrip("/"))

    @property
    def may_write(self) -> bool:
        return self.options.allow_writes and self.access.may(Role.OPERATOR)

    @property
    def may_administer(self) -> bool:
        return self.options.allow_writes and self.access.may(Role.ADMIN)

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def count(self, name: str, default: int, most: int) -> int:
        text = self.query(name)
        return min(int(text), most) if text.isdecimal() and len(text) < 10 else default

    async def queue(self) -> ShownQueue:
        """Returns the queue that the path names."""
        name = name_of_url_part(self.request.path_params["queue"])
        found = await self.sources.find(name, self.access)
        if found is None:
            raise PageNotFound(f"there is no queue {name!r}")
        return found

    async def is_left(self) -> bool:
        """Whether the request was closed. A live part has no request of its own."""
        return self.is_request and await self.request.is_disconnected()

    def redacted(self, queue: str, field_name: str, value: object) -> object:
        return value if self.options.redact is None else self.options.redact(queue, field_name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page before it is rendered: a template, its values, and its place in the navigation."""

    template: str
    title: str
    place: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    is_live: bool = True
    status: int = 200
    # Two pages of the same address and moment, for people with the same rights, are the same: rendered once.
    moment: Hashable = None


PageFunction: TypeAlias = Callable[[View], Awaitable[Page]]
