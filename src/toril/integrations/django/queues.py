"""The queues that a Django process adds to, shared by its threads.

Guarantee: there is one queue for each name, server and prefix. Django makes a backend for each thread; all of them use
these queues. A forked process connects anew.
"""

from __future__ import annotations

import threading
from typing import Final

from toril import sync

_lock: Final = threading.Lock()
_queues: Final[dict[tuple[str, str | None, str], sync.Queue]] = {}


def open_queue(name: str, redis: str | None, prefix: str) -> sync.Queue:
    """The queue, which is made at the first use."""
    with _lock:
        key = (name, redis, prefix)
        if key not in _queues:
            _queues[key] = sync.Queue(name, redis=redis, prefix=prefix)
        return _queues[key]


def close_queues() -> None:
    """Closes all queues, for tests: a process that ends needs no call."""
    with _lock:
        while _queues:
            _queues.popitem()[1].close()
