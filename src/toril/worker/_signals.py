"""Signals: the first one stops workers within their time-out, the second one at once.

Guarantee: signal handlers are installed only while a `run()` runs in the main thread; every worker that runs there gets
every signal; the previous handlers are restored when the last worker has ended.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

# A process has one main thread, hence one loop that gets signals, and maybe several workers in it.
_listeners: list[Callable[[], Any]] = []
_previous: dict[signal.Signals, Any] = {}  # restored when the last worker ends


@contextmanager
def signals_caught(on_first: Callable[[], object], on_second: Callable[[], object]) -> Iterator[None]:
    """Calls `on_first`, then `on_second`, as signals arrive. Other threads get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    steps = iter((on_first, on_second))

    def received() -> None:
        step = next(steps, on_second)
        step()

    if not _listeners:
        _install()
    _listeners.append(received)
    try:
        yield
    finally:
        _listeners.remove(received)
        if not _listeners:
            _restore()


def _install() -> None:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        _previous[number] = signal.getsignal(number)
        loop.add_signal_handler(number, _received)


def _received() -> None:
    for received in _listeners:
        received()


def _restore() -> None:
    loop = asyncio.get_running_loop()
    for number, handler in _previous.items():
        loop.remove_signal_handler(number)
        signal.signal(number, handler)
    _previous.clear()
