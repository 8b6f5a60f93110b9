"""Renders pages with Jinja2.

Guarantee: every value is escaped; only markup that this package makes from escaped parts is not. A value that a
template does not get is an error, not an empty text. No hidden character reaches the browser.
"""

from __future__ import annotations

import functools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from toril import __version__
from toril.dashboard import _texts
from toril.dashboard._attempt_bars import attempt_bars
from toril.dashboard._states import STATE_SIGNS
from toril.dashboard._view import Page, View, quoted
from toril.dashboard.access import Access
from toril.plots import Series, sparkline

# Replaced by the token of the person who receives a live part. Nobody can guess it, so no value can contain it.
TOKEN_PLACE: Final = secrets.token_hex(16)
_LIVE_PLACE: Final = secrets.token_hex(16)
# Of a small plot: a single sample is one narrow bar, not the whole width.
LEAST_COLUMNS: Final = 24
# Addresses and people whose pages are kept: some megabytes.
MOST_KEPT: Final = 32

_FILTERS: Final[dict[str, Callable[..., str]]] = {
    "number": _texts.number,
    "size": _texts.size,
    "brief": _texts.brief,
    "span": _texts.span,
    "span_ms": _texts.span_ms,
    "moment": _texts.moment,
    "visible": _texts.visible,
    "query": quoted,
    "coded": lambda text: _texts.url_part(str(text)),
    "short": _texts.shortened,
    "json_colours": _texts.coloured_json,
}


@functools.cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("toril.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= _FILTERS
    made.filters["timeline"] = attempt_bars
    made.globals |= {"ago": _texts.ago, "spark": spark, "version": __version__, "signs": STATE_SIGNS}
    return made


def spark(completed: list[float], failed: list[float]) -> Markup:
    """Returns an hour of minutes as a small plot; fewer values stand at its end, and nothing is no plot."""
    if not any(completed) and not any(failed):
        return Markup("")
    size = max(len(completed), len(failed), LEAST_COLUMNS)
    series = [
        Series(name=name, kind=name, values=[*[None] * (size - len(values)), *values])
        for name, values in (("completed", completed), ("failed", failed))
    ]
    return Markup(sparkline(series))


def _values(view: View, page: Page) -> dict[str, Any]:
    return {
        "view": view,
        "link": view.link,
        "access": view.access,
        "csrf": view.request.scope["toril.csrf"],
        "title": page.title,
        "place": page.place,
        "template": f"live/{page.template}.html",
        "is_live": page.is_live,
        "here": _page_address(view),
        **page.values,
    }


def _page_address(view: View) -> str:
    """Returns the address of this page within the dashboard."""
    root = view.request.scope.get("root_path", "")
    query = view.request.scope.get("query_string", b"").decode("latin-1")
    path: str = view.request.scope["path"]
    return path.removeprefix(root) + (f"?{query}" if query else "")


class RenderedParts:
    """Live parts of pages that were rendered, so that a page of the same moment is rendered once."""

    def __init__(self) -> None:
        self._texts: OrderedDict[Hashable, str] = OrderedDict()

    def text(self, key: Hashable, render: Callable[[], str]) -> str:
        text = self._texts.pop(key, None)
        if text is None:
            text = render()
        self._texts[key] = text
        while len(self._texts) > MOST_KEPT:
            self._texts.popitem(last=False)
        return text


def render_page(view: View, page: Page) -> HTMLResponse:
    """Returns the whole page."""
    values = {**_values(view, page), "live": _LIVE_PLACE}
    frame = _texts.visible(environment().get_template("page.html").render(values))
    live = render_live(view, page).replace(TOKEN_PLACE, view.request.scope["toril.csrf"])
    return HTMLResponse(frame.replace(_LIVE_PLACE, live), page.status)


def render_live(view: View, page: Page) -> str:
    """Returns the part of a page that changes. People share it, so `TOKEN_PLACE` stands for the token of each."""

    def render() -> str:
        values = {**_values(view, page), "csrf": TOKEN_PLACE}
        return _texts.visible(environment().get_template(f"live/{page.template}.html").render(values))

    if page.moment is None:
        return render()
    parts: RenderedParts = view.parts.rendered
    return parts.text((page.moment, view.link.root, _page_address(view), *rights_of(view.access)), render)


def rights_of(access: Access) -> tuple[Hashable, ...]:
    """Returns what two people have in common who see the same."""
    return access.role, access.queues, access.user if access.queues else ""
