"""Who may come in, and from where: what is refused leaves no trace in the audit and changes nothing."""

from __future__ import annotations

import base64
import socket
from typing import Any

import pytest
from starlette.requests import Request

from tests.dashboard.conftest import ORIGIN, MakePerson, Person
from tests.servers import Server
from toril import InvalidOption, Queue
from toril.dashboard import Access, DashboardOptions
from toril.dashboard.options import ServerOptions, check_bind
from toril.dashboard.serve import serve

SECRET = "a-token-of-32-characters-or-more"
GOOD = {"origin": ORIGIN, "sec-fetch-site": "same-origin"}


def audit_length(valkey: Server, prefix: str) -> int:
    with valkey.client() as client:
        return int(client.xlen(f"{prefix}:toril:audit"))


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> Any:
    async with Queue("emails", redis=valkey_url, prefix=prefix) as queue:
        await queue.add("send", {"n": 1})
        yield queue


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
        {"origin": "null", "sec-fetch-site": "same-origin"},
        {"origin": ORIGIN, "sec-fetch-site": "cross-site"},
        {"origin": ORIGIN, "sec-fetch-site": "same-site"},
        {"sec-fetch-site": "same-origin"},
        {**GOOD, "host": "evil.example"},
        {**GOOD, "host": "127.0.0.1.evil.example"},
    ],
)
async def test_a_write_from_elsewhere_is_refused_and_not_recorded(
    admin: Person, queue: Queue, valkey: Server, prefix: str, headers: dict[str, str]
) -> None:
    reply = await admin.post("/queues/emails/act", {"act": "pause"}, headers=headers)
    assert reply.status_code == 403
    assert not await queue.is_paused()
    assert audit_length(valkey, prefix) == 0


@pytest.mark.parametrize("token", ["", "x" * 32, None])
async def test_a_write_without_the_token_of_a_page_is_refused(
    admin: Person, queue: Queue, valkey: Server, prefix: str, token: str | None
) -> None:
    await admin.token()
    fields = {"act": "pause"} if token is None else {"act": "pause", "token": token}
    reply = await admin.client.post("/queues/emails/act", data=fields, headers=GOOD)
    assert reply.status_code == 403
    assert "token" in reply.text
    assert not await queue.is_paused()
    assert audit_length(valkey, prefix) == 0


async def test_the_token_of_another_browser_is_refused(
    person_with: MakePerson, queue: Queue, valkey: Server, prefix: str
) -> None:
    one, other = await person_with(allow_writes=True), await person_with(allow_writes=True)
    foreign = await other.token()
    await one.token()
    fields = {"act": "pause", "token": foreign}
    assert (await one.client.post("/queues/emails/act", data=fields, headers=GOOD)).status_code == 403
    assert audit_length(valkey, prefix) == 0


async def test_without_allow_writes_everything_is_read_only(
    viewer: Person, queue: Queue, valkey: Server, prefix: str
) -> None:
    reply = await viewer.post("/queues/emails/act", {"act": "pause"})
    assert (reply.status_code, "read only" in reply.text) == (403, True)
    assert not await queue.is_paused()
    assert audit_length(valkey, prefix) == 0
    assert "<button name=" not in await viewer.text("/queues/emails")


@pytest.mark.parametrize(
    ("role", "act", "status"),
    [
        ("viewer", "pause", 403),
        ("operator", "pause", 303),
        ("operator", "drain", 403),
        ("operator", "obliterate", 403),
        ("operator", "concurrency", 403),
        ("admin", "drain", 200),  # it asks once more
    ],
)
async def test_an_act_needs_its_role(
    person_with: MakePerson, queue: Queue, valkey: Server, prefix: str, role: str, act: str, status: int
) -> None:
    person = await person_with(allow_writes=True, role=role)
    assert (await person.post("/queues/emails/act", {"act": act})).status_code == status
    assert audit_length(valkey, prefix) == (2 if status == 303 else 0)


async def test_a_queue_that_is_not_granted_is_neither_shown_nor_changed(
    person_with: MakePerson, queue: Queue, valkey_url: str, valkey: Server, prefix: str
) -> None:
    async with Queue("team-a-mails", redis=valkey_url, prefix=prefix) as other:
        await other.add("send", {})

    def authorize(_: Request) -> Access:
        return Access(role="admin", queues=("team-a-*",), user="anna")

    person = await person_with(allow_writes=True, authorize=authorize)
    page = await person.text("/")
    assert "team-a-mails" in page
    assert "emails" not in page
    for path in (
        "/queues/emails",
        "/queues/emails/job?id=1",
        "/failures?queue=emails",
        "/queues/emails/settings",
    ):
        assert (await person.get(path)).status_code == 404, path
    assert (await person.post("/queues/emails/act", {"act": "pause"})).status_code == 404
    assert (await person.get("/places")).json() == [["team-a-mails", "/queues/team-a-mails"]]
    assert not await queue.is_paused()
    assert audit_length(valkey, prefix) == 0


async def test_authorize_may_wait_and_may_refuse(person_with: MakePerson) -> None:
    async def authorize(request: Request) -> Access | None:
        return Access(user="anna") if request.headers.get("x-key") == "right" else None

    person = await person_with(authorize=authorize)
    assert (await person.get("/")).status_code == 401
    assert (await person.get("/", headers={"x-key": "right"})).status_code == 200


async def test_every_response_forbids_what_is_not_its_own(viewer: Person) -> None:
    for path in ("/", "/static/dashboard.js", "/nothing", "/sign-in"):
        headers = (await viewer.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
    cookie = (await viewer.get("/nothing", headers={"cookie": "toril_csrf=short"})).headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie


async def test_a_page_has_no_inline_script_and_no_inline_style(viewer: Person, queue: Queue) -> None:
    for path in ("/", "/queues/emails", "/failures", "/workers", "/health", "/history"):
        page = await viewer.text(path)
        assert " style=" not in page and "<style" not in page
        assert " onclick=" not in page and " hx-on" not in page
        assert page.count("<script") == page.count('<script src="/static/')
        assert "http://" not in page.replace(ORIGIN, "") and "https://" not in page


async def test_other_machines_need_authentication(person_with: MakePerson) -> None:
    stranger = await person_with(client_address=("192.0.2.7", 4711))
    assert (await stranger.get("/")).status_code == 403


async def test_a_token_is_given_once_and_is_then_a_cookie(person_with: MakePerson) -> None:
    person = await person_with(token=SECRET, client_address=("192.0.2.7", 4711))
    reply = await person.get("/")
    assert (reply.status_code, reply.headers["location"]) == (303, "/sign-in")
    await person.get("/sign-in")
    form = {"token": person.client.cookies["toril_csrf"], "secret": "wrong"}
    assert (await person.client.post("/sign-in", data=form, headers=GOOD)).status_code == 403
    assert (await person.get("/audit")).status_code == 303
    reply = await person.client.post("/sign-in", data={**form, "secret": SECRET}, headers=GOOD)
    assert reply.status_code == 303
    assert (await person.get("/")).status_code == 200


async def test_programs_send_the_token_as_a_bearer(person_with: MakePerson) -> None:
    person = await person_with(token=SECRET)
    assert (await person.get("/", headers={"authorization": f"Bearer {SECRET}"})).status_code == 200
    assert (await person.get("/", headers={"authorization": f"Bearer {SECRET}x"})).status_code == 303


async def test_basic_authentication(person_with: MakePerson) -> None:
    person = await person_with(basic=("anna", "püss:word"))
    assert (await person.get("/")).headers["www-authenticate"].startswith("Basic")
    for pair, status in (("anna:püss:word", 200), ("anna:wrong", 401), ("anna", 401)):
        header = "Basic " + base64.b64encode(pair.encode()).decode()
        assert (await person.get("/", headers={"authorization": header})).status_code == status
    assert (await person.get("/", headers={"authorization": "Basic %%%"})).status_code == 401


async def test_the_user_of_a_proxy_is_in_the_audit(
    person_with: MakePerson, queue: Queue, valkey: Server, prefix: str
) -> None:
    person = await person_with(allow_writes=True, proxy_user_header="x-user")
    assert (await person.get("/")).status_code == 401
    person.client.headers["x-user"] = "anna"
    await person.done("/queues/emails/act", {"act": "pause"})
    with valkey.client() as client:
        (_, first), (_, second) = client.xrange(f"{prefix}:toril:audit")
    assert (first[b"user"], first[b"act"], first[b"queue"]) == (b"anna", b"pause", b"emails")
    assert second[b"outcome"] == b"done"
    assert await queue.is_paused()
    assert "anna" in await person.text("/audit")


async def test_an_act_that_cannot_be_recorded_does_not_happen(
    admin: Person, queue: Queue, valkey: Server, prefix: str
) -> None:
    with valkey.client() as client:
        client.set(f"{prefix}:toril:audit", "no stream")
    reply = await admin.post("/queues/emails/act", {"act": "pause"})
    assert reply.status_code == 409
    assert not await queue.is_paused()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_other_methods_are_refused(viewer: Person, method: str) -> None:
    assert (await viewer.client.request(method, "/")).status_code == 405


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
async def test_a_public_address_without_authentication_refuses_to_start(host: str) -> None:
    with pytest.raises(InvalidOption, match="no authentication"):
        await serve(DashboardOptions(), host=host, port=0)
    check_bind(host, DashboardOptions(token=SECRET))
    check_bind("127.0.0.1", DashboardOptions())


def test_options_under_which_everyone_could_come_in_are_refused() -> None:
    with pytest.raises(InvalidOption, match="allowed_hosts"):
        DashboardOptions(allowed_hosts=("queues.example.com",))
    with pytest.raises(InvalidOption, match="allowed_hosts"):
        DashboardOptions(allowed_hosts=("*",))
    with pytest.raises(InvalidOption, match="token"):
        DashboardOptions(token="short")
    assert DashboardOptions(allowed_hosts=("queues.example.com",), token=SECRET).authenticates


async def test_a_port_that_is_in_use_is_refused_by_its_number(valkey_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InvalidOption, match=f"port: {port} of 127.0.0.1 is in use"):
            await serve(
                DashboardOptions(servers=(ServerOptions(redis=valkey_url),)), host="127.0.0.1", port=port
            )
