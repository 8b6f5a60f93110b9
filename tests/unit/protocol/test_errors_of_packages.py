"""Errors of real packages, raised by the packages themselves, are classified by their structure."""

from __future__ import annotations

import contextlib
import http.server
import smtplib
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import anthropic
import botocore.exceptions
import botocore.session
import elastic_transport
import elasticsearch
import google.api_core.exceptions as google_errors
import google.auth.exceptions as google_auth_errors
import grpc
import httpx
import httpx2
import openai
import pytest
from botocore.config import Config

from toril.protocol.classify import ErrorCategory, known_category, retry_after

PERMANENT, TRANSIENT = ErrorCategory.PERMANENT, ErrorCategory.TRANSIENT
STATUSES = {
    **dict.fromkeys((408, 429, 500, 502, 503, 504, 529), TRANSIENT),
    **dict.fromkeys((400, 401, 403, 404, 409, 422), PERMANENT),
}


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers `/<status>/…` with that status, and `/stream/…` with a stream that ends in an error."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.path.split("/")[1]
        if kind == "stream":
            self._answer(200, "text/event-stream", self.server.error_event)  # type: ignore[attr-defined]
        else:
            self._answer(int(kind), "application/json", b'{"error": {"type": "some_type", "message": "no"}}')

    do_GET = do_POST

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Elastic-Product", "Elasticsearch")
        if status == 429:
            self.send_header("Retry-After", "17")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""


@pytest.fixture(autouse=True)
def _without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="module")
def http_server() -> Iterator[http.server.ThreadingHTTPServer]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(scope="module")
def url(http_server: http.server.ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{http_server.server_port}"


@pytest.fixture(scope="module")
def closed() -> str:
    """An address at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """An address at which a call is taken and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def with_httpx(address: str) -> None:
    with httpx.Client(timeout=0.2, trust_env=False) as client:
        client.get(address).raise_for_status()


def with_httpx2(address: str) -> None:
    with httpx2.Client(timeout=0.2, trust_env=False) as client:
        client.get(address).raise_for_status()


def with_openai(address: str, *, stream: bool = False) -> None:
    messages: Any = [{"role": "user", "content": "?"}]
    with openai.OpenAI(api_key="x", base_url=address, max_retries=0, timeout=0.2) as client:
        answer: Any = client.chat.completions.create(model="m", messages=messages, stream=stream)
        list(answer)


def with_anthropic(address: str, *, stream: bool = False) -> None:
    messages: Any = [{"role": "user", "content": "?"}]
    with anthropic.Anthropic(api_key="x", base_url=address, max_retries=0, timeout=0.2) as client:
        answer: Any = client.messages.create(model="m", messages=messages, max_tokens=1, stream=stream)
        list(answer)


def with_elasticsearch(address: str) -> None:
    with contextlib.closing(
        elasticsearch.Elasticsearch(address, max_retries=0, request_timeout=0.2, retry_on_timeout=False)
    ) as client:
        client.search(index="i", query={"match_all": {}})


def with_botocore(address: str) -> None:
    session = botocore.session.Session()
    session.set_credentials("x", "y")
    config = Config(retries={"max_attempts": 0}, connect_timeout=0.2, read_timeout=0.2)
    client = session.create_client("sqs", region_name="eu-west-1", endpoint_url=address, config=config)
    with contextlib.closing(client):
        client.list_queues()


CLIENTS: list[Callable[[str], None]] = [
    with_httpx,
    with_httpx2,
    with_openai,
    with_anthropic,
    with_elasticsearch,
    with_botocore,
]
each_client = pytest.mark.parametrize("call", CLIENTS, ids=lambda call: call.__name__)


def raised(call: Callable[..., Any], *values: Any, **named: Any) -> BaseException:
    try:
        call(*values, **named)
    except Exception as error:  # noqa: BLE001 (the error is what is wanted)
        return error
    raise AssertionError("nothing was raised")


def without_relatives(error: BaseException) -> BaseException:
    """The same error, as it is when whoever caught it wrapped nothing: it must speak for itself."""
    error.__cause__ = error.__context__ = None
    return error


@each_client
def test_a_refused_connection_is_transient(call: Callable[[str], None], closed: str) -> None:
    error = raised(call, f"{closed}/200")
    assert known_category(error) is TRANSIENT, repr(error)
    assert known_category(without_relatives(error)) is TRANSIENT, type(error).__mro__


@each_client
def test_a_time_out_is_transient(call: Callable[[str], None], silent: str) -> None:
    error = raised(call, f"{silent}/200")
    assert known_category(error) is TRANSIENT, repr(error)
    assert known_category(without_relatives(error)) is TRANSIENT, type(error).__mro__


@each_client
def test_a_status_decides(call: Callable[[str], None], url: str) -> None:
    errors = {status: without_relatives(raised(call, f"{url}/{status}")) for status in STATUSES}
    assert {status: known_category(error) for status, error in errors.items()} == STATUSES


@pytest.mark.parametrize("call", [with_httpx, with_httpx2, with_openai, with_anthropic])
def test_the_pause_that_a_service_asks_for_is_found(call: Callable[[str], None], url: str) -> None:
    assert retry_after(raised(call, f"{url}/429")) == 17


@pytest.mark.parametrize("call", [with_openai, with_anthropic])
@pytest.mark.parametrize(
    ("code", "category"), [("overloaded_error", TRANSIENT), ("server_error", TRANSIENT), ("odd", None)]
)
def test_an_error_in_a_stream_that_began_well_is_classified_by_its_type(
    call: Callable[..., None], http_server: Any, url: str, code: str, category: ErrorCategory | None
) -> None:
    body = f'{{"type": "error", "error": {{"type": "{code}", "message": "no"}}}}'
    http_server.error_event = f"event: error\ndata: {body}\n\n".encode()
    assert known_category(raised(call, f"{url}/stream", stream=True)) is category


# --- gRPC and Google ----------------------------------------------------------------------------------------


@pytest.fixture
def aborting() -> Iterator[Callable[[grpc.StatusCode], BaseException]]:
    """Calls a real gRPC server, which aborts with the code that is asked for."""

    def abort(code: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode[code.decode()], "asked for")
        raise AssertionError

    handler = grpc.method_handlers_generic_handler("s", {"m": grpc.unary_unary_rpc_method_handler(abort)})
    with futures.ThreadPoolExecutor(max_workers=1) as threads:
        server = grpc.server(threads, handlers=(handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield lambda code: raised(channel.unary_unary("/s/m"), code.name.encode(), timeout=5)
        server.stop(None).wait()


GRPC = {
    **dict.fromkeys(("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"), TRANSIENT),
    **dict.fromkeys(("INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED"), PERMANENT),
}


def test_a_grpc_code_decides_alone_and_within_googles_errors(
    aborting: Callable[[grpc.StatusCode], BaseException],
) -> None:
    errors = {code: aborting(grpc.StatusCode[code]) for code in GRPC}
    assert {code: known_category(error) for code, error in errors.items()} == GRPC
    translated = {code: google_errors.from_grpc_error(error) for code, error in errors.items()}
    assert {code: known_category(without_relatives(error)) for code, error in translated.items()} == GRPC


def test_nobody_at_a_grpc_address_is_transient(closed: str) -> None:
    with grpc.insecure_channel(closed.removeprefix("http://")) as channel:
        assert known_category(raised(channel.unary_unary("/s/m"), b"", timeout=5)) is TRANSIENT
        waited = raised(grpc.channel_ready_future(channel).result, timeout=0.01)
    assert isinstance(waited, grpc.FutureTimeoutError)
    assert known_category(waited) is TRANSIENT


ERRORS: list[tuple[BaseException, ErrorCategory | None]] = [
    *((google_errors.from_http_status(status, "x"), category) for status, category in STATUSES.items()),
    (google_errors.RetryError("x", cause=ValueError()), TRANSIENT),
    (google_auth_errors.TransportError("x"), TRANSIENT),
    (google_auth_errors.TimeoutError("x"), TRANSIENT),
    (google_auth_errors.RefreshError("x", retryable=True), TRANSIENT),
    (google_auth_errors.RefreshError("x"), None),
    (botocore.exceptions.EndpointConnectionError(endpoint_url="x"), TRANSIENT),
    (botocore.exceptions.ReadTimeoutError(endpoint_url="x"), TRANSIENT),
    (botocore.exceptions.ConnectionClosedError(endpoint_url="x"), TRANSIENT),
    (botocore.exceptions.SSLError(endpoint_url="x", error="y"), PERMANENT),
    (botocore.exceptions.NoCredentialsError(), PERMANENT),
    (botocore.exceptions.UnknownServiceError(service_name="x", known_service_names="y"), None),
    (elastic_transport.TlsError("x"), PERMANENT),
    (elastic_transport.SerializationError("x"), None),
    (anthropic.RetryableError("x"), TRANSIENT),
    (openai.OpenAIError("x"), None),
    (httpx2.UnsupportedProtocol("x"), PERMANENT),
    (httpx2.RemoteProtocolError("x"), TRANSIENT),
    # mail
    (smtplib.SMTPResponseException(451, "try later"), TRANSIENT),
    (smtplib.SMTPDataError(452, b"no space"), TRANSIENT),
    (smtplib.SMTPDataError(554, b"refused"), PERMANENT),
    (smtplib.SMTPSenderRefused(450, b"x", "a@b.c"), TRANSIENT),
    (smtplib.SMTPAuthenticationError(454, b"for now"), TRANSIENT),
    (smtplib.SMTPAuthenticationError(535, b"wrong"), PERMANENT),
    (smtplib.SMTPConnectError(421, b"too busy"), TRANSIENT),
    (smtplib.SMTPServerDisconnected("x"), TRANSIENT),
    (smtplib.SMTPRecipientsRefused({"a@b.c": (450, b"greylisted")}), TRANSIENT),
    (smtplib.SMTPRecipientsRefused({"a@b.c": (450, b"x"), "d@e.f": (550, b"no such user")}), PERMANENT),
    (smtplib.SMTPRecipientsRefused({}), PERMANENT),
    # programs
    (raised(subprocess.run, ["sleep", "5"], timeout=0.01), TRANSIENT),
    (raised(subprocess.run, ["false"], check=True), None),
]


@pytest.mark.parametrize(
    ("error", "category"), ERRORS, ids=[f"{n}-{type(e).__name__}" for n, (e, _) in enumerate(ERRORS)]
)
def test_an_error_speaks_for_itself(error: BaseException, category: ErrorCategory | None) -> None:
    assert known_category(error) is category


@pytest.mark.parametrize(
    ("code", "category"),
    [
        ("ThrottlingException", TRANSIENT),
        ("RequestTimeout", TRANSIENT),
        ("SlowDown", TRANSIENT),
        ("NoSuchKey", PERMANENT),
    ],
)
def test_a_code_of_aws_counts_more_than_its_status(code: str, category: ErrorCategory) -> None:
    response: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    assert known_category(botocore.exceptions.ClientError(response, "Get")) is category
