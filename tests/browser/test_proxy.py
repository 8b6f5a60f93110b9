"""The proxy of a page: who may use it, and what it does with requests that nobody should send."""

from __future__ import annotations

import asyncio
import base64
import logging

import pytest

from tests.browser.site import Site
from toril.browser import BrowserOptions
from toril.browser._proxy import USER, AddressProxy

OPTIONS = BrowserOptions(allow=("127.0.0.1",))


async def asked(proxy: AddressProxy, line: bytes, *, password: str | None = None) -> bytes:
    """The answer to one request, with the proxy's own password unless another is given."""
    login = base64.b64encode(f"{USER}:{proxy.password if password is None else password}".encode())
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
    header = b"Proxy-Authorization: Basic " + login + b"\r\n" if password != "" else b""
    writer.write(line + b" HTTP/1.1\r\nHost: a\r\n" + header + b"\r\n")
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


@pytest.mark.parametrize("password", ["", "wrong", "ü"])
async def test_a_program_without_the_password_gets_nothing(site: Site, password: str) -> None:
    async with AddressProxy(OPTIONS) as proxy:
        target = site.url("/").encode()
        answer = await asked(proxy, b"GET " + target, password=password)
        assert answer.startswith(b"HTTP/1.1 407 ") and b"mitenand" not in answer
        assert b"mitenand" in await asked(proxy, b"GET " + target)


async def test_a_proxy_that_belongs_to_no_page_refuses_every_connection(site: Site) -> None:
    async with AddressProxy(OPTIONS, serves_page=False) as proxy:
        assert (await asked(proxy, b"GET " + site.url("/").encode())).startswith(b"HTTP/1.1 403 ")
        assert await proxy.check("127.0.0.1", 80) == "127.0.0.1"


@pytest.mark.parametrize(
    "line",
    [
        b"GET http://[::1/",
        b"GET http://[v1.x]/",
        b"CONNECT [::1",
        b"CONNECT a:b",
        b"CONNECT :99999999",
        b"GET http://a\x00b/",
        b"GET http://" + b"a" * 300 + b"/",
        b"GET http://\xff\xfe/",
        b"GET http://.../",
        b"GET http://fe80::1%25eth0/",
        b"GET http://127.0.0.1:0/",
        b"GET //",
        b"GET \x1b[2J",
        b"\x16\x03\x01 a",
    ],
    ids=ascii,
)
async def test_a_strange_target_is_answered_and_the_next_request_is_served(
    site: Site, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with AddressProxy(OPTIONS) as proxy:
        answer = await asked(proxy, line)
        assert answer.split(b" ")[1] in (b"400", b"403", b"502"), answer
        assert b"mitenand" in await asked(proxy, b"GET " + site.url("/").encode())
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []
