"""The category of service errors by codes of SMTP, gRPC, AWS and HTTP APIs, and by flags.

Guarantee: pure; nothing of the services' packages is imported. A code that is missing or unreadable gives no category.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from toril.protocol._error_chain import read
from toril.protocol._error_names import CategoryName
from toril.protocol._known_errors import API_TRANSIENT_CODES, AWS_TRANSIENT_CODES, GRPC_TRANSIENT_CODES

# Flags by which libraries mark errors that are worth a retry: Kafka's clients, google-auth and others.
_FLAGS: Final = ("retryable", "retriable", "is_retryable", "should_retry", "is_transient")


def category_by_flag(error: BaseException) -> CategoryName | None:
    """Only True counts: libraries also leave the default False on transient errors."""
    return "transient" if any(read(error, name) is True for name in _FLAGS) else None


def category_by_smtp(error: BaseException) -> CategoryName | None:
    """4xx is transient, 5xx permanent; of several recipients, a permanent refusal decides."""
    if not any(cls.__name__.startswith("SMTP") for cls in type(error).__mro__):
        return None
    codes = [code for code in _smtp_codes(error) if isinstance(code, int) and 400 <= code <= 599]
    if not codes:
        return None
    return "permanent" if max(codes) >= 500 else "transient"


def _smtp_codes(error: BaseException) -> Iterator[object]:
    yield read(error, "smtp_code")
    yield read(error, "code")  # aiosmtplib
    recipients = read(error, "recipients")
    if isinstance(recipients, Mapping):
        yield from (reply[0] for reply in recipients.values())
    elif isinstance(recipients, (list, tuple)):
        yield from (read(one, "code") for one in recipients)


def category_by_grpc(error: BaseException) -> CategoryName | None:
    """gRPC's own errors by their code; of Google's, which also have an HTTP status, only transient codes."""
    name = read(read(error, "grpc_status_code"), "name")
    if name in GRPC_TRANSIENT_CODES:
        return "transient"
    if not any(str(cls.__module__).partition(".")[0] == "grpc" for cls in type(error).__mro__):
        return None
    code = read(error, "code")
    name = read(code() if callable(code) else code, "name")
    if name is None:
        return None
    return "transient" if name in GRPC_TRANSIENT_CODES else "permanent"


def category_by_aws(error: BaseException) -> CategoryName | None:
    """AWS replies 400 with a code in cases of 429 or 503."""
    response = read(error, "response")
    if not isinstance(response, Mapping):
        return None
    return "transient" if (response.get("Error") or {}).get("Code") in AWS_TRANSIENT_CODES else None


def category_by_body(error: BaseException) -> CategoryName | None:
    """The category by the body of an HTTP API's reply."""
    body = read(error, "body")
    inner = body.get("error") if isinstance(body, Mapping) else None
    codes = [read(error, "code"), read(error, "type")]
    if isinstance(inner, Mapping):
        codes += [inner.get("code"), inner.get("type")]
    known = any(isinstance(code, str) and code in API_TRANSIENT_CODES for code in codes)
    return "transient" if known else None
