"""How a browser job can fail, with the word that its dead letter will carry.

    BrowserTimeout (TransientError)    playwright_timeout    the page, or what was asked of it, took too long
    BrowserCrashed (TransientError)    browser_crashed       the browser went away while the job ran
    PageUnreachable (TransientError)   net::ERR_…            no connection, no such name, …
    PageBusy (TransientError)          http_503, http_429    the server answered with an error that may pass
    PageRefused (PermanentError)       http_404, …           the server answered with another error
    AddressRefused (PermanentError)    address_refused       the page, or a redirect, leads to a private address
    PageIsDownload (PermanentError)    download_refused      the address leads to a file, not to a page
    PageTooLarge (PermanentError)      page_too_large        more bytes than a page may load
    ResultTooLarge (PermanentError)    result_too_large      more bytes than a result may have

Guarantee: `error_code` is one stable word for each kind of failure, fit for filters.
"""

from __future__ import annotations

from toril import errors
from toril.errors import PermanentError, TransientError


class BrowserTimeout(TransientError, TimeoutError):
    """The page, or what was asked of it, took too long."""

    error_code = "playwright_timeout"


class BrowserCrashed(TransientError):
    """The browser went away while the job ran."""

    error_code = "browser_crashed"


class PageUnreachable(TransientError):
    """The page could not be loaded; `error_code` is Chromium's own word for it."""

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


class ResultTooLarge(errors.ResultTooLarge):
    """What was extracted has more bytes than a result may have."""

    error_code = "result_too_large"
