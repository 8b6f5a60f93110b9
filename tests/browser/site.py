"""A small site on loopback, with pages that behave and pages that do not."""

from __future__ import annotations

import base64
import gzip
import hashlib
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

PAGES: dict[str, str] = {
    "/": """<html><head><title>A page</title></head><body>
        <p class="content" data-kind="greeting">Grüezi <b>mitenand</b></p>
        <p class="content" data-kind="farewell">Adieu</p></body></html>""",
    "/late": """<html><body><script>
        setTimeout(() => { document.body.innerHTML = '<p class="content">drawn by a script</p>' }, 50)
        </script></body></html>""",
    "/cookies": """<html><body><p class="content"></p><script>
        document.querySelector('.content').textContent = document.cookie || 'no cookies';
        document.cookie = 'seen=1';
        </script></body></html>""",
    "/endless-text": f"<html><body><p class='content'>{'x' * 200_000}</p></body></html>",
}


class Site:
    """Serves on one loopback address; counts what was asked for."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.visits: list[str] = []
        self.redirects: dict[str, str] = {}
        self.pages = dict(PAGES)
        self._never = threading.Event()
        self._server = ThreadingHTTPServer((host, 0), self._handler())
        self._server.daemon_threads = False
        self._server.block_on_close = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="site")

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "/", host: str | None = None) -> str:
        return f"http://{host or str(self._server.server_address[0])}:{self.port}{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._never.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                site.visits.append(path)
                step = STEPS.get(path, _page)
                try:
                    step(site, self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                return

        return Handler


def _send(handler: BaseHTTPRequestHandler, status: int, text: str, **headers: str) -> None:
    body = text.encode()
    handler.send_response(status)
    handler.send_header("Content-Type", "text/html; charset=utf-8")
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


def _page(site: Site, handler: BaseHTTPRequestHandler) -> None:
    path = handler.path.split("?")[0]
    if path in site.redirects:
        _send(handler, 302, "", Location=site.redirects[path])
    elif path in site.pages:
        _send(handler, 200, site.pages[path])
    else:
        _send(handler, 404, "no such page")


def _never(site: Site, handler: BaseHTTPRequestHandler) -> None:
    """A page that never loads."""
    site._never.wait(30)
    handler.close_connection = True


def _busy(site: Site, handler: BaseHTTPRequestHandler) -> None:
    _send(handler, 503, "busy")


def _flood(site: Site, handler: BaseHTTPRequestHandler) -> None:
    """A page that never ends."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html")
    handler.end_headers()
    while not site._never.is_set():
        handler.wfile.write(b"<!-- " + b"x" * 65536 + b" -->")


def _download(site: Site, handler: BaseHTTPRequestHandler) -> None:
    """A file to be saved."""
    _send(handler, 200, "hello", **{"Content-Disposition": "attachment; filename=a.bin"})


def _locked(site: Site, handler: BaseHTTPRequestHandler) -> None:
    """A page that asks for a password."""
    _send(handler, 401, "who are you?", **{"WWW-Authenticate": "Basic realm=here"})


BOMB = gzip.compress(b"x" * 30_000_000)  # 30 KB


def _bomb(site: Site, handler: BaseHTTPRequestHandler) -> None:
    """A small response that is unpacked to thirty megabytes."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/plain")
    handler.send_header("Content-Encoding", "gzip")
    handler.send_header("Content-Length", str(len(BOMB)))
    handler.send_header("Access-Control-Allow-Origin", "*")
    handler.end_headers()
    handler.wfile.write(BOMB)


def _socket(site: Site, handler: BaseHTTPRequestHandler) -> None:
    """A WebSocket that sends one compressed message of thirty megabytes."""
    key = handler.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header(
        "Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    )
    handler.send_header("Sec-WebSocket-Extensions", "permessage-deflate")
    handler.end_headers()
    packer = zlib.compressobj(wbits=-15)
    message = packer.compress(b"x" * 30_000_000) + packer.flush(zlib.Z_SYNC_FLUSH)
    body = message.removesuffix(b"\x00\x00\xff\xff")
    handler.wfile.write(b"\xc1\x7e" + len(body).to_bytes(2, "big") + body)
    site._never.wait(30)
    handler.close_connection = True


STEPS: dict[str, Callable[[Site, BaseHTTPRequestHandler], None]] = {
    "/never": _never,
    "/busy": _busy,
    "/flood": _flood,
    "/download": _download,
    "/locked": _locked,
    "/bomb": _bomb,
    "/socket": _socket,
}
