"""`create_app`: the dashboard as an ASGI application, to be served or mounted.

Guarantee: an error of a server or of a request is a page that says what happened; nothing of a traceback is shown.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from toril.dashboard._bulk_writes import group_act, selection_act
from toril.dashboard._failures import FailureIndex
from toril.dashboard._findings import Findings
from toril.dashboard._history import History
from toril.dashboard._live import LiveHub
from toril.dashboard._operations import Operations
from toril.dashboard._render import (
    TOKEN_PLACE,
    RenderedParts,
    environment,
    render_live,
    render_page,
    rights_of,
)
from toril.dashboard._security import SIGN_IN_COOKIE, SecurityMiddleware, has_form_token, token_cookie
from toril.dashboard._sources import Sources
from toril.dashboard._texts import visible
from toril.dashboard._view import Links, Page, PageFunction, PageNotFound, View
from toril.dashboard._writes import (
    Write,
    handle,
    job_act,
    operation_act,
    queue_act,
    read_form,
    scheduler_act,
)
from toril.dashboard.access import Access
from toril.dashboard.options import DashboardOptions
from toril.dashboard.pages import PAGES
from toril.dashboard.pages.job import raw_value
from toril.errors import InvalidOption, RedisUnavailable, TorilError

logger = logging.getLogger("toril.dashboard")

# The forms of pages, by their paths.
WRITES: Final[dict[str, Write]] = {
    "/queues/{queue}/act": queue_act,
    "/queues/{queue}/selection": selection_act,
    "/queues/{queue}/job/act": job_act,
    "/queues/{queue}/scheduler": scheduler_act,
    "/failures/act": group_act,
    "/operations/{operation}/act": operation_act,
}


class Dashboard:
    """The services of one dashboard."""

    def __init__(self, options: DashboardOptions) -> None:
        self.options = options
        self.sources = Sources(options)
        self.history = History(options)
        self.live = LiveHub(options.live_seconds)
        self.failures = FailureIndex()
        self.findings = Findings(self.sources)
        self.operations = Operations()
        self.rendered = RenderedParts()

    def view(self, request: Request, *, is_request: bool = True) -> View:
        access: Access = request.scope["toril.access"]
        return View(
            request=request,
            access=access,
            sources=self.sources,
            options=self.options,
            history=self.history,
            is_request=is_request,
            parts=self,
        )

    async def close(self) -> None:
        """Ends streams and closes connections."""
        await self.live.close()
        await self.operations.close()
        await self.failures.close()
        await self.findings.close()
        await self.history.close()
        await self.sources.close()


def create_app(options: DashboardOptions | None = None, **given: Any) -> Starlette:
    """Returns the dashboard. Options are those of `DashboardOptions`.

    app.mount("/queues", create_app(servers=[ServerOptions(redis=url)], authorize=by_session))
    """
    if options is not None and given:
        raise InvalidOption("options", "are given twice", "give DashboardOptions, or its fields")
    dashboard = Dashboard(options or DashboardOptions(**given))
    routes = [
        *(Route(path, _endpoint(dashboard, page), name=page.__name__) for path, page in PAGES.items()),
        Route("/live", _live(dashboard)),
        Route("/places", _places(dashboard)),
        Route("/queues/{queue}/job/value", _value(dashboard)),
        *(Route(path, _write(dashboard, write), methods=["POST"]) for path, write in WRITES.items()),
        Route("/sign-in", _sign_in(dashboard), methods=["GET", "POST"]),
        Mount("/static", StaticFiles(packages=[("toril.dashboard", "static")]), name="static"),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        dashboard.sources.prepare()
        try:
            yield
        finally:
            await dashboard.close()

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(SecurityMiddleware, options=dashboard.options)],
        exception_handlers={404: _not_found(dashboard)},
    )
    app.state.dashboard = dashboard
    return app


def _endpoint(dashboard: Dashboard, function: PageFunction) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        view = dashboard.view(request)
        return render_page(view, await _page(view, function))

    endpoint.__name__ = function.__name__
    endpoint.page_function = function  # type: ignore[attr-defined]
    return endpoint


async def _page(view: View, function: PageFunction) -> Page:
    try:
        return await function(view)
    except PageNotFound as error:
        return _problem(404, "Not found", str(error))
    except RedisUnavailable as error:
        return _problem(503, "The server does not answer", str(error))
    except InvalidOption as error:
        return _problem(400, "This address is not understood", str(error))
    except TorilError as error:
        logger.warning("a page failed: %s", error)
        return _problem(502, "The server answered with an error", str(error))


def _problem(status: int, title: str, problem: str) -> Page:
    return Page(
        template="problem",
        title=title,
        values={"problem": problem, "status": status},
        is_live=status == 503,
        status=status,
    )


def _not_found(dashboard: Dashboard) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handler(request: Request, _: Exception) -> Response:
        if "toril.access" not in request.scope:
            return Response("not found\n", 404, media_type="text/plain")
        return render_page(dashboard.view(request), _problem(404, "Not found", "there is no such page"))

    return handler


def _write(dashboard: Dashboard, write: Write) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await handle(dashboard.view(request), write)

    return endpoint


# --- parts of pages ------------------------------------------------------------------------------------------------


def _places(dashboard: Dashboard) -> Callable[[Request], Awaitable[Response]]:
    """The names and links of all queues, for the list of Ctrl K."""

    async def places(request: Request) -> Response:
        view = dashboard.view(request)
        try:
            seen = await view.sources.overview(view.access)
        except TorilError as error:
            return JSONResponse({"problem": str(error)}, 503)
        return JSONResponse([[visible(one.id), view.link("queues", one.id)] for one in seen.queues])

    return places


def _value(dashboard: Dashboard) -> Callable[[Request], Awaitable[Response]]:
    """One value of a job as text, as a download."""

    async def value(request: Request) -> Response:
        view = dashboard.view(request)
        try:
            text = await raw_value(view)
        except (PageNotFound, TorilError) as error:
            return PlainTextResponse(f"{error}\n", 404)
        headers = {"content-disposition": "attachment; filename=value.txt"}
        return Response(text, media_type="text/plain; charset=utf-8", headers=headers)

    return value


# --- live ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    function: PageFunction
    scope: Scope


def _live(dashboard: Dashboard) -> Callable[[Request], Awaitable[Response]]:
    async def live(request: Request) -> Response:
        page = request.query_params.get("page", "/")
        found = _function_of(request, page)
        if found is None:
            return Response("no such page\n", 404, media_type="text/plain")
        view = dashboard.view(Request(found.scope), is_request=False)
        key = (page, view.link.root, *rights_of(view.access))

        async def render() -> str:
            return render_live(view, await _live_page(view, found.function))

        async def messages() -> AsyncIterator[str]:
            async for message in dashboard.live.messages(key, render):
                yield message.replace(TOKEN_PLACE, request.scope["toril.csrf"])

        return StreamingResponse(
            messages(),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    return live


async def _live_page(view: View, function: PageFunction) -> Page:
    """Returns a page; errors of the server are raised, for the banner."""
    try:
        return await function(view)
    except PageNotFound as error:
        return _problem(404, "Not found", str(error))


def _function_of(request: Request, page: str) -> _Found | None:
    """Returns the page that an address within the dashboard names."""
    parts = urlsplit(page)
    root = request.scope.get("root_path", "")
    scope: dict[str, object] = {
        **request.scope,
        "path": root + parts.path,
        "query_string": parts.query.encode(errors="replace"),
        "method": "GET",
        "path_params": {},
    }
    for route in request.app.routes:
        match, more = route.matches(scope)
        function = getattr(getattr(route, "endpoint", None), "page_function", None)
        if match is Match.FULL and function is not None:
            return _Found(function, {**scope, **more})
    return None


# --- signing in --------------------------------------------------------------------------------------------------


def _sign_in(dashboard: Dashboard) -> Callable[[Request], Awaitable[Response]]:
    async def sign_in(request: Request) -> Response:
        link = Links(request.scope.get("root_path", "").rstrip("/"))
        token = dashboard.options.token
        wrong = False
        if request.method == "POST" and token is not None:
            form = await read_form(request)
            right = secrets.compare_digest(str(form.get("secret", "")).encode(), token.encode())
            if right and has_form_token(request, form.get("token")):
                answer = Response(status_code=303, headers={"location": link("")})
                token_cookie(request, answer, SIGN_IN_COOKIE, token)
                return answer
            wrong = True
        text = environment().get_template("sign_in.html")
        values = {"link": link, "csrf": request.scope["toril.csrf"], "wrong": wrong, "title": "Sign in"}
        return HTMLResponse(text.render(values), 403 if wrong else 200)

    return sign_in
