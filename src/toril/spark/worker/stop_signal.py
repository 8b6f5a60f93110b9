"""Tells the Spark tasks of a worker to stop, by a key in Redis.

Guarantee: whoever asks for a stop does not wait for a server: the key is written by a thread.
"""

from __future__ import annotations

import threading
from typing import Final, Self

from toril.commands.command import plain
from toril.errors import TorilError
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

# Longer than a slice takes to end; a worker that died leaves no key behind for long.
_LIFETIME_MS: Final = 600_000
_POLL_SECONDS: Final = 0.05  # also after an error of the server


def stop_key(keys: QueueKeys, worker: str) -> str:
    """The key that tells all tasks of a `SparkWorker` to stop."""
    return keys.toril(f"work:stop:{worker}")


class StopSignal:
    """Writes the key when the event is set, and removes it at the end."""

    def __init__(self, asked: threading.Event, transport: BlockingTransport, key: str) -> None:
        self._asked = asked
        self._transport = transport
        self._key = key
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="toril-spark-stop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._asked.is_set():
            try:
                self._transport.run(plain(int, "DEL", self._key))
            except TorilError:
                return  # it expires

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            if self._asked.is_set() and self._written():
                return

    def _written(self) -> bool:
        try:
            self._transport.run(plain(bool, "SET", self._key, "1", "PX", _LIFETIME_MS))
        except TorilError:
            return False
        return True
