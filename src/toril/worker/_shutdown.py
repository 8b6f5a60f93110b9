"""Signals: the first asks for an orderly end, the second for an immediate one.

Guarantee: handlers of signals are ours only while a `run()` runs in the main thread, every worker that runs there hears
every signal, and what was there before is put back when the last one has ended.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)

# A process has one main thread, hence one loop that can hear signals, and maybe several workers in it.
_listeners: list[Callable[[], Any]] = []
_before: dict[signal.Signals, Any] = {}  # what was there, to be put back when the last worker ends


@contextmanager
def signals_caught(on_first: Callable[[], Any], on_second: Callable[[], Any]) -> Iterator[None]:
    """Calls `on_first`, then `on_second`, as signals arrive. In other threads there is nothing to hear."""
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
            _put_back()


def _install() -> None:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        _before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, _heard)


def _heard() -> None:
    for received in _listeners:
        received()


def _put_back() -> None:
    loop = asyncio.get_running_loop()
    for number, handler in _before.items():
        loop.remove_signal_handler(number)
        signal.signal(number, handler)
    _before.clear()
