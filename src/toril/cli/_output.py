"""The output of commands: tables for people, JSON for programs.

Guarantee: text from a queue has no effect on the terminal: markup and control characters are printed as text. Rich is
imported for tables and bars, not for lines and JSON.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from toril.protocol import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")

# The width without a terminal: enough for an id, a name and a reason in one line.
PIPE_WIDTH = 160
# Characters of a cell; `--json` prints everything.
MAX_CELL = 200
# Characters of one value of a job that is shown in full.
MAX_FACT = 100_000
UNLIMITED_WIDTH = 10_000
# The last column, which holds sentences, is folded to no less than this.
MIN_LAST_COLUMN = 16
GUTTER = 3
# Cells without information.
EMPTY_CELLS = ("", "·", "–", "0")


# The line that names the server of the command, until it is printed.
_server_line: list[str] = []


def set_server_line(label: str) -> None:
    """Sets the line that names the server; it is printed on standard error before anything else.

    It is not printed at once: for a usage error only the error is printed.
    """
    _server_line[:] = [f"server: {printable.one_line(label)}"]


def print_server() -> None:
    """Prints the line now, unless it is printed already."""
    if line := take_server_line():
        print(line, file=sys.stderr, flush=True)


def take_server_line() -> str:
    """Returns the line and forgets it; empty if it is printed already."""
    return _server_line.pop() if _server_line else ""


def console() -> Console:
    """Returns a console on the present standard output."""
    from rich.console import Console

    print_server()
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=width, soft_wrap=False)


def print_line(line: str) -> None:
    """Prints one line on standard output."""
    print_server()
    print(printable.one_line(line), flush=True)


def print_result(facts: Mapping[str, object], line: str, *, as_json: bool) -> None:
    """Prints the result of a command: a JSON document, or one line."""
    if as_json:
        emit(facts)
    else:
        print_line(line)


def warn(line: str) -> None:
    """Prints one line on standard error."""
    print_server()
    print(f"toril: {printable.one_line(line)}", file=sys.stderr, flush=True)


class _Warnings(logging.Handler):
    """Prints what a queue logs as warnings of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


@contextlib.contextmanager
def queue_warnings() -> Iterator[None]:
    """Prints warnings that queues log meanwhile, each as one line on standard error, behind that of the server."""
    logger, handler = logging.getLogger("toril.queue"), _Warnings(logging.WARNING)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def escape_control(text: object) -> str:
    """Returns text of several lines with control characters escaped."""
    return printable.lines(str(text))


def shorten(value: object, limit: int = MAX_CELL) -> str:
    """Returns a value as one line of at most `limit` characters."""
    start = str(value)[: limit + 1]  # cut first: the value may have megabytes
    text = printable.one_line(start.replace("\n", " "))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def emit(value: object) -> None:
    """Prints one JSON document."""
    print_server()
    print(_encoded(value, indent=2), flush=True)


def emit_line(value: object, file: TextIO | None = None) -> None:
    """Prints one JSON document in one line, on standard output or to a file."""
    print_server()
    print(_encoded(value), file=file, flush=file is None)


def _encoded(value: object, indent: int | None = None) -> str:
    """Returns JSON with control characters escaped; other characters only if the locale has none of them."""
    ascii_only = "utf" not in (sys.stdout.encoding or "utf").lower()
    text = json.dumps(value, default=_plain, ensure_ascii=ascii_only, indent=indent)
    return printable.json_text(text)


def _plain(value: object) -> object:
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
    """Returns a plain table; the columns in `right` are right-aligned."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    result = Table(
        box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False, show_edge=False
    )
    numbers = set(right)
    for column in columns:
        result.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(shorten(cell)) for cell in row))
    return result


def show(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    right: Iterable[str] = (),
    empty: str = "nothing here",
) -> None:
    """Prints a table, or the line `empty` without rows."""
    if not rows:
        print_line(empty)
        return
    terminal = console()
    result = table(columns, rows, title=title, right=right)
    if (
        terminal.measure(result, options=terminal.options.update(width=UNLIMITED_WIDTH)).maximum
        > terminal.width
    ):
        columns, rows = _without_empty(columns, rows)
        if _minimum_width(columns, rows) > terminal.width:
            _show_vertically(columns, rows)
            return
        result = table(columns, rows, title=title, right=right)
    terminal.print(result)


def _minimum_width(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """Returns the width of a table with every column in full, except the last one, which may be folded."""
    from rich.cells import cell_len

    texts = [[column, *(shorten(row[at]) for row in rows)] for at, column in enumerate(columns)]
    widths = [max(map(cell_len, column)) for column in texts]
    return sum(widths[:-1]) + min(widths[-1], MIN_LAST_COLUMN) + GUTTER * (len(columns) - 1)


def _show_vertically(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """For narrow terminals: an id that is folded over several lines cannot be copied."""
    for row in rows:
        show_facts({column or "–": shorten(cell) for column, cell in zip(columns, row, strict=True)})
        console().print()


def _without_empty(
    columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """Returns the table without columns that are empty in all rows."""
    shown = [at for at in range(len(columns)) if any(str(row[at]) not in EMPTY_CELLS for row in rows)]
    return [columns[at] for at in shown], [[row[at] for at in shown] for row in rows]


def show_facts(facts: Mapping[str, object]) -> None:
    """Prints names and values, the values in full unless they are longer than anybody reads."""
    from rich.table import Table
    from rich.text import Text

    result = Table(box=None, show_header=False, pad_edge=False)
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for name, value in facts.items():
        result.add_row(Text(printable.one_line(name)), Text(escape_control(_without_excess(value))))
    console().print(result)


def _without_excess(value: object) -> object:
    """A megabyte takes a second to be broken into lines."""
    text = str(value)
    return f"{text[:MAX_FACT]}… (--json has all)" if len(text) > MAX_FACT else value


def batches_with_progress(items: Sequence[T], doing: str, size: int = 500) -> Iterator[Sequence[T]]:
    """Yields the items in batches, with a progress bar in a terminal if there are several batches."""
    from rich.console import Console
    from rich.progress import track

    parts = [items[start : start + size] for start in range(0, len(items), size)]
    terminal = Console(stderr=True)
    if len(parts) < 2 or not terminal.is_terminal:
        yield from parts
        return
    print_server()
    yield from track(parts, description=f"  {doing}", console=terminal, transient=True)


@contextlib.contextmanager
def progress_bar(doing: str) -> Iterator[None]:
    """Shows a progress bar of unknown length on standard error, in a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield
        return
    print_server()
    columns = TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=terminal, transient=True) as bar:
        bar.add_task(printable.one_line(doing), total=None)
        yield


def format_seconds(value: float | None) -> str:
    """Returns a duration with its unit."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7200:
        return f"{value / 60:.0f} min"
    return f"{value / 3600:.1f} h"


def format_time(value: datetime | None) -> str:
    """Returns a time in the local time zone."""
    return "–" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
