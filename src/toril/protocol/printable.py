"""Text of other programs in a form that can be printed: on a terminal, in a log line, in a metric.

Guarantee: pure. The result has no character that a terminal obeys, that ends a line, or that changes the direction of
text, so a name, an id or an error can neither forge a line nor hide one. Ordinary text is returned as it is.
"""

from __future__ import annotations

import re
from typing import Final

# Control characters; marks, overrides and isolates of the direction; line and paragraph separators; surrogates.
_OBEYED: Final = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINE: Final = re.compile(f"(?!\t)[{_OBEYED}]")
_IN_TEXT: Final = re.compile(f"(?![\t\n])[{_OBEYED}]")
# JSON escapes the characters below U+0020 itself.
_IN_JSON: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """Returns text on one line; tabulators stay, what would end the line or be obeyed is written as an escape."""
    return text if text.isprintable() else _IN_LINE.sub(_escaped, text)


def lines(text: str) -> str:
    """Returns text of several lines: line feeds and tabulators stay, everything else that is obeyed is escaped."""
    return text if text.isprintable() else _IN_TEXT.sub(_escaped, text)


def json_text(document: str) -> str:
    """Returns a JSON document with everything escaped that a terminal or a reader of lines would obey."""
    return document if document.isprintable() else _IN_JSON.sub(_json_escape, document)


def cut(text: str, limit: int) -> str:
    """Returns the beginning of a long text, and the number of characters that are left out."""
    return text if len(text) <= limit else f"{text[:limit]}…[{len(text) - limit} characters]"


def _escaped(sign: re.Match[str]) -> str:
    code = ord(sign[0])
    return _SHORT.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def _json_escape(sign: re.Match[str]) -> str:
    return f"\\u{ord(sign[0]):04x}"


_SHORT: Final = {0x0A: "\\n", 0x0D: "\\r"}
