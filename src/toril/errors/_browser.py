"""Errors of browser jobs.

Guarantee: `error_code` is one stable word for each kind of failure, fit for filters; dead letters carry it.
"""

from __future__ import annotations

from toril.errors._base import PermanentError, TransientError


class BrowserTimeout(TransientError, TimeoutError):
    """The page, or what was asked of it, took too long."""

    error_code = "playwright_timeout"


class BrowserCrashed(TransientError):
    """The browser ended while the job ran."""

    error_code = "browser_crashed"


class PageUnreachable(TransientError):
    """The page could not be loaded; `error_code` is Chromium's name for the reason."""

    def __init__(self, url: str, code: str) -> None:
        super().__init__(f"{url} cannot be reached: {code}")
        self.error_code = code


class PageRefused(PermanentError):
    """The server answered with an error that another attempt will not change."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{url} answered with status {status}")
        self.status = status
        self.error_code = f"http_{status}"


class PageBusy(TransientError):
    """The server answered with an error that may pass."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{url} answered with status {status}")
        self.status = status
        self.error_code = f"http_{status}"


class AddressRefused(PermanentError):
    """The address is private, loopback or otherwise not of the public internet, and was not allowed."""

    error_code = "address_refused"

    def __init__(self, host: str, address: str | None = None) -> None:
        where = f"{host} ({address})" if address and address != host else host
        super().__init__(
            f"{where} is not a public address; allow it with BrowserOptions(allow=…) if you mean it"
        )
        self.host = host
        self.address = address


class PageIsDownload(PermanentError):
    """The address leads to a file to be saved, not to a page."""

    error_code = "download_refused"


class PageTooLarge(PermanentError):
    """The page loaded more bytes than it may."""

    error_code = "page_too_large"
