"""What errors have in common: the pattern of a message, and its fingerprint.

Guarantee: two messages that differ only in numbers, ids, addresses, quoted parts or the class of the error before them
have one fingerprint. The lake and the dashboard use the same expressions, so that their groups are the same.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

# In this order: what is longer and more special comes first. Java and Python read them alike (with re.ASCII).
PATTERNS: Final = (
    # `Error: text`, `TypeError [ERR_INVALID_URL]: text`, `package.module.TransientError: text`: whoever stores the text
    # says the class of the error with it, or not. What a KeyError says is nothing without.
    (r"^(?:(?!KeyError:)(?:[A-Za-z_$][\w$.]*)?(?:Error|Exception)(?: \[\w+\])?:\s+)+", ""),
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<uuid>"),
    (r"\b[a-z][a-z0-9+.-]*://\S+", "<url>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b[0-9a-f]{12,}\b", "<hex>"),
    # The ids that `Queue` makes. One in 17 has no digit and is not recognized: it might be the name of a class.
    (r"\b(?=\w*[0-9])(?=\w*[a-z])(?=\w*[A-Z])[A-Za-z0-9]{16}\b", "<id>"),
    (r"\"[^\"]*\"|'[^']*'|`[^`]*`", "<text>"),
    (r"\d+(\.\d+)?", "<n>"),
    (r"\s+", " "),
)
LONGEST: Final = 300  # characters; errors differ at the beginning of their message
READ: Final = 4 * LONGEST  # characters of the first line that are looked at
FINGERPRINT_DIGITS: Final = 16

_COMPILED: Final = tuple((re.compile(expression, re.ASCII), text) for expression, text in PATTERNS)


def error_pattern(message: str) -> str:
    """Returns the message without its variable parts."""
    text = message.partition("\n")[0][:READ]
    for expression, placeholder in _COMPILED:
        text = expression.sub(placeholder, text)
    return text.strip(" ")[:LONGEST]


def fingerprint(pattern: str) -> str:
    """Returns the short name of a pattern."""
    return hashlib.sha256(pattern.encode(errors="replace")).hexdigest()[:FINGERPRINT_DIGITS]
