"""Checks around every page: who may see it, from where, and what a browser may load.

Guarantee: a request that is not for an allowed host, not by a known person, or that writes from another site is
answered with 4xx before any page or action runs. Every response forbids scripts, styles, images and connections from
elsewhere, and inline ones.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
import ipaddress
import secrets
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toril.dashboard.access import Access
from toril.dashboard.options import LOOPBACK_NAMES, DashboardOptions

CSRF_COOKIE: Final = "toril_csrf"
SIGN_IN_COOKIE: Final = "toril_token"
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: under that browsers send `Origin: null` with forms of the page itself.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
# Answers that need no person: the sign-in page and the files it loads.
_OPEN: Final = ("/static/", "/sign-in")


class SecurityMiddleware:
    """ASGI middleware that checks each request and completes each response."""

    def __init__(self, app: ASGIApp, options: DashboardOptions) -> None:
        self._app = app
        self._options = options
        self._hosts = {host.lower() for host in (*LOOPBACK_NAMES, *options.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        csrf = request.cookies.get(CSRF_COOKIE, "")
        fresh = "" if _is_token(csrf) else secrets.token_urlsafe(24)
        scope["toril.csrf"] = fresh or csrf

        async def complete(message: Message) -> None:
            if message["type"] == "http.response.start":
                _complete(message, scope, fresh)
            await send(message)

        refusal = await self._refusal(request)
        await (refusal or self._app)(scope, receive, complete)

    async def _refusal(self, request: Request) -> Response | None:
        if not self._knows_host(request.headers):
            return _refused("this host name is not allowed; see --allowed-host", 403)
        if request.method not in ("GET", "HEAD", "POST"):
            return _refused("this method is not allowed", 405)
        if request.method == "POST" and (problem := self._cross_site_reason(request)):
            return _refused(problem, 403)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith(_OPEN):
            return None
        access = await self._access(request)
        if access is None:
            return self._unknown_person(request)
        request.scope["toril.access"] = access
        return None

    def _knows_host(self, headers: Headers) -> bool:
        hosts = headers.getlist("host")
        return len(hosts) == 1 and (_host_name(hosts[0]) in self._hosts or "*" in self._hosts)

    def _cross_site_reason(self, request: Request) -> str | None:
        """Returns why a write is not from a page of this dashboard; None if it is. `handle` checks the token."""
        site = request.headers.get("sec-fetch-site")
        if site is not None and site != "same-origin":
            return "the request comes from another site"
        origin = request.headers.get("origin")
        if origin is None:
            return "the request has no Origin"
        host = urlsplit(origin).netloc.lower()
        own = request.headers.get("host", "").lower()
        if host != own and _host_name(host) not in self._hosts - set(LOOPBACK_NAMES):
            return "the request comes from another origin"
        return None

    async def _access(self, request: Request) -> Access | None:
        options = self._options
        if options.authorize is not None:
            found = options.authorize(request)
            return await found if inspect.isawaitable(found) else found
        if not options.authenticates:
            return options.anonymous if _from_this_machine(request) else None
        user = self._user(request)
        return None if user is None else Access(role=options.role, user=user)

    def _user(self, request: Request) -> str | None:
        options = self._options
        if options.proxy_user_header is not None:
            named = request.headers.get(options.proxy_user_header, "").strip()
            if named:
                return named[:200]
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if options.token is not None:
            shown = given if scheme.lower() == "bearer" else request.cookies.get(SIGN_IN_COOKIE, "")
            if _equal_secret(shown, options.token):
                return "token"
        if options.basic is not None and scheme.lower() == "basic" and _is_pair(given, options.basic):
            return options.basic[0]
        return None

    def _unknown_person(self, request: Request) -> Response:
        options = self._options
        if options.basic is not None:
            return PlainTextResponse(
                "sign in", 401, {"www-authenticate": 'Basic realm="toril", charset="UTF-8"'}
            )
        if options.token is not None and request.method == "GET":
            root = request.scope.get("root_path", "")
            return Response(status_code=303, headers={"location": f"{root}/sign-in"})
        return _refused("you are not signed in", 401 if options.authenticates else 403)


def has_form_token(request: Request, given: object) -> bool:
    """Whether a form has the token of the page that it belongs to."""
    return (
        isinstance(given, str)
        and _equal_secret(given, request.scope["toril.csrf"])
        and _equal_secret(given, request.cookies.get(CSRF_COOKIE, ""))
    )


def token_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Sets a cookie that scripts and other sites cannot use."""
    response.set_cookie(
        name,
        value,
        path=request.scope.get("root_path", "") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )


def _complete(message: Message, scope: Scope, fresh: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.setdefault("cache-control", "no-store")
    if fresh:
        holder = Response()
        token_cookie(Request(scope), holder, CSRF_COOKIE, fresh)
        headers.append("set-cookie", holder.headers["set-cookie"])


def _refused(problem: str, status: int) -> Response:
    return PlainTextResponse(f"refused: {problem}\n", status)


def _host_name(host: str) -> str:
    """Returns the name in a Host header, without its port, in small letters."""
    name = host.strip().lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def _from_this_machine(request: Request) -> bool:
    if request.client is None:
        return True  # a unix socket: the file's permissions decide
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _is_token(text: str) -> bool:
    return len(text) >= 32 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def _is_pair(given: str, expected: tuple[str, str]) -> bool:
    try:
        text = base64.b64decode(given, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return False
    return _equal_secret(text, ":".join(expected))


def _equal_secret(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode(errors="replace")) and bool(other)
