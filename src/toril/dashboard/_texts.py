"""Texts of pages: numbers, times, sizes, JSON, and names in URLs.

Guarantee: whatever bytes a value has, its text can be shown: control characters and marks that change the direction of
text are visible. A number is written as it is stored, also beyond 2^53.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup, escape

# A payload is folded beyond this size.
FOLDED_BYTES: Final = 64 * 1024
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:{}@")
_ALL_PLAIN: Final = re.compile(r"[A-Za-z0-9_\-.:{}@]*[A-Za-z0-9_\-:{}@]")
# What a reader cannot see, or what changes the order of what follows.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: object) -> str:
    """Returns the text with hidden characters written as `\\u202e`."""
    shown = str(text)
    # All hidden characters are unprintable, which is known much sooner than where they are.
    if shown.replace("\n", "").isprintable():
        return shown
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)


def shortened(text: object, most: int = 120) -> str:
    """Returns the first line of a text, of bounded length."""
    first = visible(str(text)[: 4 * most].strip().partition("\n")[0])
    return first if len(first) <= most else first[: most - 1] + "…"


def url_part(name: str) -> str:
    """Returns a name as a part of a path that no proxy or browser changes: other characters as `~2F`."""
    if _ALL_PLAIN.fullmatch(name):
        return name
    text = "".join(
        chr(one) if one in _PLAIN else f"~{one:02X}" for one in name.encode(errors="surrogatepass")
    )
    return text.replace(".", "~2E") if not text.strip(".") else text


def name_of_url_part(part: str) -> str:
    """Returns the name that `url_part` wrote."""
    raw = re.sub(rb"~([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), part.encode(errors="replace"))
    return raw.decode(errors="surrogatepass") if _is_text(raw) else raw.decode(errors="replace")


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"


def size(count: int | None) -> str:
    amount = float(count or 0)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return ""


def span(seconds: float | None) -> str:
    """Returns a duration with one or two units."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{max(0, seconds) * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for unit, below, part in ((60, 3600, "min s"), (3600, 86_400, "h min"), (86_400, 10**12, "d h")):
        if whole < below:
            names = part.split()
            rest = whole % unit // {60: 1, 3600: 60, 86_400: 3600}[unit]
            return f"{whole // unit} {names[0]}" + (f" {rest} {names[1]}" if rest else "")
    return f"{whole // 86_400:,} d"


def brief(seconds: float | None) -> str:
    """Returns a duration with its largest unit only, for tables."""
    if seconds is None or seconds < 60:
        return span(seconds)
    unit, name = (86_400, "d") if seconds >= 86_400 else (3600, "h") if seconds >= 3600 else (60, "min")
    return f"{int(seconds) // unit} {name}"


def span_ms(ms: float | None) -> str:
    return span(None if ms is None else ms / 1000)


def moment(ms: float | None) -> Markup:
    """Returns a time element: UTC, which the page's script changes to local time."""
    if not ms:
        return Markup("–")
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup('<span class="bad">{}</span>').format(f"{ms:.0f}")
    iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{} UTC">{} UTC</time>').format(
        iso, f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}", f"{at:%Y-%m-%d %H:%M:%S}"
    )


def ago(ms: float | None, now_ms: float) -> Markup:
    """Returns how long ago a moment was, with the moment itself in its title."""
    if not ms:
        return Markup("–")
    seconds = (now_ms - ms) / 1000
    words = f"{brief(seconds)} ago" if seconds >= 0 else f"in {brief(-seconds)}"
    return _time_element(int(ms // 1000), words)


_TIME: Final = Markup('<time datetime="%sZ" title="%s UTC" data-relative>%s</time>')


@functools.lru_cache(4096)
def _time_element(second: int, words: str) -> Markup:
    """Returns a moment and how far it is; rows of one page often have the same."""
    try:
        at = datetime.fromtimestamp(second, UTC).isoformat(" ")[:-6]
    except (ValueError, OverflowError, OSError):
        return Markup('<span class="bad">{}</span>').format(f"{second * 1000}")
    return _TIME % (at.replace(" ", "T"), at, words)


def pretty_json(raw: bytes | str) -> tuple[str, bool]:
    """Returns JSON with indents and whether it is JSON. Digits stay as they are; deep nesting is not changed."""
    text = raw.decode(errors="replace") if isinstance(raw, bytes) else raw
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return visible(text), False
    return visible("".join(_indented(text))), True


_PIECES: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def _indented(text: str) -> Iterator[str]:
    depth, last = 0, ""
    for piece in _PIECES.findall(text):
        if piece in "]}":
            depth -= 1
            yield piece if last in ("[", "{") else "\n" + "  " * depth + piece
        else:
            if last in ("[", "{", ","):
                yield "\n" + "  " * depth
            yield ": " if piece == ":" else piece
            depth += piece in ("[", "{")
        last = piece


_TOKENS: Final = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|(-?\d[\d.eE+-]*)', re.DOTALL)


def coloured_json(text: str) -> Markup:
    """Returns JSON text with its keys, strings, numbers and words in elements of their own."""
    parts: list[Markup] = []
    at = 0
    for found in _TOKENS.finditer(text):
        parts.append(escape(text[at : found.start()]))
        quoted, colon, word, digits = found.groups()
        if quoted is not None:
            kind = "k" if colon else "t"
            parts.append(Markup('<b class="j{}">{}</b>{}').format(kind, quoted, colon or ""))
        else:
            kind = "w" if word is not None else "n"
            parts.append(Markup('<b class="j{}">{}</b>').format(kind, word or digits))
        at = found.end()
    parts.append(escape(text[at:]))
    return Markup("").join(parts)
