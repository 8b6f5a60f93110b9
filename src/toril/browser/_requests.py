"""The payloads of browser jobs, validated before a browser is used.

Guarantee: a valid payload has an http(s) URL and values of the right types; anything else is a validation error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from toril.browser.options import WaitUntil
from toril.errors import PayloadMismatch


class Visit(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=False):
    """The fields of every task."""

    url: str
    wait_until: WaitUntil = "load"
    timeout: float | None = None  # seconds; at most the time-out of the worker


class Extract(Visit, kw_only=True, frozen=True):
    """The fields of `navigate_extract`."""

    selector: str
    all: bool = False  # every match, not only the first


class Screenshot(Visit, kw_only=True, frozen=True):
    """The fields of `screenshot`."""

    selector: str | None = None
    full_page: bool = False
    format: Literal["png", "jpeg"] = "png"


class Pdf(Visit, kw_only=True, frozen=True):
    """The fields of `pdf`."""

    format: Literal["A3", "A4", "A5", "Letter", "Legal"] = "A4"
    landscape: bool = False


T = TypeVar("T", bound=Visit)


def read_request(model: type[T], payload: Mapping[str, object]) -> T:
    """Returns the payload as a request of this type."""
    try:
        request = msgspec.convert(payload, model)
    except msgspec.ValidationError as error:
        raise PayloadMismatch("payload", str(error), "see the fields of the task") from None
    _check_url(request.url)
    if request.timeout is not None and not request.timeout > 0:
        raise PayloadMismatch("payload.timeout", "is not above zero", "give seconds")
    return request


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port_is_readable = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_readable = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_readable:
        raise PayloadMismatch("payload.url", "is not an http or https address", "give a whole URL")
    if parts.username or parts.password:
        raise PayloadMismatch("payload.url", "holds a password", "credentials in URLs are written to logs")
