"""Renders pages with Jinja2.

Guarantee: every value is escaped; only markup that this package makes from escaped parts is not. A value that a
template does not get is an error, not an empty text. No hidden character reaches the browser.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from toril import __version__
from toril.dashboard import _texts
from toril.dashboard._view import Page, View
from toril.dashboard._words import STATE_SIGNS
from toril.plots import Series, sparkline

# Replaced by the token of the person who receives a live part. Nobody can guess it, so no value can contain it.
TOKEN_PLACE: Final = secrets.token_hex(16)

_FILTERS: Final[dict[str, Callable[..., str]]] = {
    "number": _texts.number,
    "size": _texts.size,
    "brief": _texts.brief,
    "span": _texts.span,
    "span_ms": _texts.span_ms,
    "moment": _texts.moment,
    "visible": _texts.visible,
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
    made.globals |= {"ago": _texts.ago, "spark": spark, "version": __version__, "signs": STATE_SIGNS}
    return made


def spark(completed: list[float], failed: list[float]) -> Markup:
    """Returns an hour of minutes as a small plot."""
    series = [Series(name="completed", kind="completed", values=completed)]
    series.append(Series(name="failed", kind="failed", values=failed))
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
        "here": _here(view),
        **page.values,
    }


def _here(view: View) -> str:
    """Returns the address of this page within the dashboard."""
    root = view.request.scope.get("root_path", "")
    query = view.request.scope.get("query_string", b"").decode("latin-1")
    path: str = view.request.scope["path"]
    return path.removeprefix(root) + (f"?{query}" if query else "")


def render_page(view: View, page: Page) -> HTMLResponse:
    """Returns the whole page."""
    text = environment().get_template("page.html").render(_values(view, page))
    return HTMLResponse(_texts.visible(text), page.status)


def render_live(view: View, page: Page) -> str:
    """Returns the part of a page that changes. People share it, so `TOKEN_PLACE` stands for the token of each."""
    values = {**_values(view, page), "csrf": TOKEN_PLACE}
    return _texts.visible(environment().get_template(f"live/{page.template}.html").render(values))
