"""The category of an error by its class names, whichever package it comes from.

Guarantee: pure. Only whole words at the end of a name count ("ReadTimeout", "APIConnectionError"). The most specific
class with such a name decides; one whose name is about wrong input ("InvalidTimeout") ends the search without result.
Classes of the standard library and of toril are skipped: they are listed elsewhere.
"""

from __future__ import annotations

import re
import sys
from typing import Final, Literal

CategoryName = Literal["transient", "permanent"]

_ENDING: Final = re.compile(r"(?:Error|Exception|Failure|Failed)$")
_TRANSIENT: Final = re.compile(
    r"(?:Timeout|TimedOut|TimeoutExpired|DeadlineExceeded"
    r"|Connection|Connect|Disconnect|Disconnected|Connection(?:Closed|Dropped|Lost|Refused|Reset|Timeout)|Network"
    r"|(?:^|Service|Server|Host|Node|Cluster|Broker|Leader|Database|Backend|Upstream|Temporarily)Unavailable"
    r"|Overloaded|ServerBusy|InternalServer|BadGateway"
    r"|Throttled|Throttling|RateLimit|RateLimited|RateLimitExceeded|TooManyRequests|SlowDown"
    r"|Retryable|Retriable|Transient|Temporary)$"
)
_PERMANENT: Final = re.compile(
    r"(?:Authentication|Authorization|Unauthenticated|Unauthorized|Forbidden|PermissionDenied|AccessDenied|Credentials"
    r"|Certificate|CertificateVerification|SSL|Ssl|TLS|Tls)$"
)
# Names that negate their last word: "NonRetryableError", "NotTransient".
_DENIED: Final = re.compile(r"(?:Non|Not|Un)_?(?:[Rr]etryable|[Rr]etriable|Transient|Temporary)$")
# Parts of names that are about wrong input.
_ABOUT_INPUT: Final = re.compile(
    r"Invalid|Illegal|Malformed|Missing|Unknown|Unsupported|NotSupported|NoSuch|Config|Validation"
)
_KNOWN_ELSEWHERE: Final = sys.stdlib_module_names | {"toril"}


def category_by_names(error: BaseException) -> CategoryName | None:
    """Returns the category by the names of the error's classes."""
    for cls in type(error).__mro__:
        if str(cls.__module__).partition(".")[0] in _KNOWN_ELSEWHERE:
            continue
        stem = _ENDING.sub("", cls.__name__)
        if _ABOUT_INPUT.search(stem):
            return None
        if _PERMANENT.search(stem) or _DENIED.search(stem):
            return "permanent"
        if _TRANSIENT.search(stem):
            return "transient"
    return None
