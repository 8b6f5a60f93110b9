"""Signals: the first asks for an orderly end, the second for an immediate one.

Guarantee: handlers of signals are ours only while `run()` runs, and what was there before is put back.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_caught(on_first: Callable[[], Any], on_second: Callable[[], Any]) -> Iterator[None]:
    """Calls `on_first`, then `on_second`, as signals arrive."""
    loop = asyncio.get_running_loop()
    steps = iter((on_first, on_second))

    def received() -> None:
        step = next(steps, on_second)
        step()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, received)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
