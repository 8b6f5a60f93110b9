"""The browser tasks (extra `browser`): Chromium loads pages, isolated from each other and within limits."""

from __future__ import annotations

from toril.browser.options import BrowserOptions
from toril.errors import (
    AddressRefused,
    BrowserCrashed,
    BrowserTimeout,
    PageBusy,
    PageIsDownload,
    PageRefused,
    PageTooLarge,
    PageUnreachable,
    ResultTooLarge,
)
from toril.protocol.extras import needed

with needed("browser"):
    from toril.browser._pool import BrowserPool
    from toril.browser.tasks import BrowserTasks

__all__ = [
    "AddressRefused",
    "BrowserCrashed",
    "BrowserOptions",
    "BrowserPool",
    "BrowserTasks",
    "BrowserTimeout",
    "PageBusy",
    "PageIsDownload",
    "PageRefused",
    "PageTooLarge",
    "PageUnreachable",
    "ResultTooLarge",
]
