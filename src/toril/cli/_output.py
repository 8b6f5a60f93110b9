"""What the commands print: tables for people, JSON for programs.

Guarantee: text that comes from a queue is shown as it is and never acted upon: no markup, no control characters.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, track
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

# A pipe has no width: wide enough for an id, a name and a reason beside each other.
PIPE_WIDTH = 160
# A cell is there to be glanced at; `--json` has everything.
LONGEST_CELL = 200
UNBOUNDED = 10_000
# The last column, where sentences stand, is folded down to this; below it nobody can read them.
NARROWEST_LAST = 16
GUTTER = 3
# Cells that say nothing.
NOTHING = ("", "·", "–", "0")

_OBEYED_IN_JSON = re.compile(r"[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


# The line that says which server a command works on, until it is printed.
_server_line: list[str] = []


def print_server_first(label: str) -> None:
    """Which server it is, on standard error, before anything else is printed.

    Not at once: input that is not understood is answered with one line alone.
    """
    _server_line[:] = [f"server: {harmless(label)}"]


def print_server() -> None:
    """Prints that line now, unless it is printed already: before a long silence, or at the end."""
    if line := unprinted_server():
        print(line, file=sys.stderr, flush=True)


def unprinted_server() -> str:
    """The line, for whoever prints it in another way; empty when there is none any more."""
    return _server_line.pop() if _server_line else ""


def console() -> Console:
    """Where tables go. Made anew, so that it follows whatever standard output is at the moment."""
    print_server()
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width, soft_wrap=False)


def say(line: str) -> None:
    """One line for people."""
    print_server()
    print(harmless(line), flush=True)


def print_result(facts: Mapping[str, object], line: str, *, as_json: bool) -> None:
    """Prints the result of a command: a JSON document, or one line."""
    if as_json:
        emit(facts)
    else:
        say(line)


def warn(line: str) -> None:
    """One line that does not belong to the result."""
    print_server()
    print(f"toril: {harmless(line)}", file=sys.stderr, flush=True)


def harmless(text: object) -> str:
    """Text without anything that a terminal would obey."""
    return _CONTROL.sub(lambda sign: f"\\x{ord(sign[0]):02x}", str(text))


def shortened(value: object, limit: int = LONGEST_CELL) -> str:
    """One line of a value, for a cell."""
    text = harmless(value).replace("\n", " ")
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def emit(value: Any) -> None:
    """One JSON document."""
    print_server()
    print(_encoded(value, indent=2), flush=True)


def emit_line(value: Any, file: TextIO | None = None) -> None:
    """One JSON document in a line: for streams of them, and for files."""
    print_server()
    print(_encoded(value), file=file, flush=file is None)


def _encoded(value: Any, indent: int | None = None) -> str:
    """JSON in readable letters where the locale has them, with every sign escaped that a terminal would obey."""
    foreign = "utf" not in (sys.stdout.encoding or "utf").lower()
    text = json.dumps(value, default=_plain, ensure_ascii=foreign, indent=indent)
    return _OBEYED_IN_JSON.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value) if isinstance(value, (Path, bytes)) else repr(value)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", right: Iterable[str] = ()
) -> Table:
    """A plain table; the columns in `right` hold numbers."""
    made = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, show_edge=False
    )
    numbers = set(right)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(shortened(cell)) for cell in row))
    return made


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    right: Iterable[str] = (),
    empty: str = "nothing here",
) -> None:
    """A table on standard output, or a line that says that there is nothing."""
    if not rows:
        say(empty)
        return
    screen = console()
    made = table(columns, rows, title=title, right=right)
    if screen.measure(made, options=screen.options.update(width=UNBOUNDED)).maximum > screen.width:
        columns, rows = _without_empty(columns, rows)
        if _least_width(columns, rows) > screen.width:
            _show_below_each_other(columns, rows)
            return
        made = table(columns, rows, title=title, right=right)
    screen.print(made)


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """What a table needs to be read: every column in full, but for the last one, which may be folded."""
    texts = [[column, *(shortened(row[at]) for row in rows)] for at, column in enumerate(columns)]
    widths = [max(map(cell_len, column)) for column in texts]
    return sum(widths[:-1]) + min(widths[-1], NARROWEST_LAST) + GUTTER * (len(columns) - 1)


def _show_below_each_other(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """For narrow screens: an id that is folded over four lines cannot be copied."""
    for row in rows:
        show_facts({column or "–": shortened(cell) for column, cell in zip(columns, row, strict=True)})
        console().print()


def _without_empty(
    columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """Where there is not room for everything, columns that say nothing in any row go first."""
    telling = [at for at in range(len(columns)) if any(str(row[at]) not in NOTHING for row in rows)]
    return [columns[at] for at in telling], [[row[at] for at in telling] for row in rows]


def show_facts(facts: Mapping[str, object]) -> None:
    """Names and values beside each other, the values in full."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in facts.items():
        made.add_row(Text(harmless(name)), Text(harmless(value)))
    console().print(made)


def in_batches(items: Sequence[T], doing: str, size: int = 500) -> Iterator[Sequence[T]]:
    """The items in parts, with a bar on standard error while there is more than one part and somebody to see it."""
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    screen = Console(stderr=True)
    if len(parts) < 2 or not screen.is_terminal:
        yield from parts
        return
    print_server()
    yield from track(parts, description=f"  {doing}", console=screen, transient=True)


@contextlib.contextmanager
def in_progress(doing: str) -> Iterator[None]:
    """A bar on standard error while something runs whose length nobody knows, if there is somebody to see it."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    print_server()
    columns = TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=screen, transient=True) as bar:
        bar.add_task(harmless(doing), total=None)
        yield


def seconds(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def moment(value: datetime | None) -> str:
    """A time of day in the reader's zone."""
    return "–" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
