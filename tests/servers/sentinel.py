"""A Valkey primary, its replica and a Sentinel that watches over both."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import redis

from tests.servers.process import READY_WITHIN, Server, valkey_binary

SERVICE = "toril-primary"
DOWN_AFTER_MS = 500  # Short: tests of a failover wait for it.


class ValkeySentinel:
    """One watched pair; `fail_over` promotes the replica and returns once the Sentinel says so."""

    def __init__(self) -> None:
        # Without the delay in which a primary waits for more replicas: tests want the copy now.
        self.primary = Server.valkey(repl_diskless_sync_delay="0")
        self.replica = Server.valkey()
        self.sentinel = _SentinelServer(valkey_binary())

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}"

    @property
    def nodes(self) -> list[Server]:
        """The servers that hold data, the current primary first."""
        pair = [self.primary, self.replica]
        return sorted(pair, key=lambda server: server.port != self.primary_port())

    def start(self) -> Self:
        self.primary.start()
        self.replica.settings["replicaof"] = f"127.0.0.1 {self.primary.port}"
        self.replica.start()
        self.sentinel.watched_port = self.primary.port
        self.sentinel.start()
        self._wait_until("the replica is known", self._knows_replica)
        return self

    def primary_port(self) -> int:
        """The port of the primary by the Sentinel's word."""
        return int(self._ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def fail_over(self) -> None:
        before = self.primary_port()
        self._wait_until("the replica may be promoted", self._accepts_failover)
        self._wait_until("the replica was promoted", lambda: self.primary_port() != before)

    def remove(self) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _ask(self, *words: str) -> Any:
        with self.sentinel.client() as client:
            return client.execute_command(*words)

    def _accepts_failover(self) -> bool:
        try:
            self._ask("SENTINEL", "FAILOVER", SERVICE)
        except redis.ResponseError as error:
            # The replica must have been seen in good health a few times before.
            if "NOGOODSLAVE" not in str(error):
                raise
            return False
        return True

    def _knows_replica(self) -> bool:
        replicas = self._ask("SENTINEL", "REPLICAS", SERVICE)
        return bool(replicas) and "s_down" not in repr(replicas)

    def _wait_until(self, what: str, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while not is_true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Sentinel: waited in vain until {what}")
            time.sleep(0.05)


class _SentinelServer(Server):
    """A Sentinel needs a configuration file that it may rewrite."""

    watched_port = 0

    def _command(self) -> list[str]:
        file = self.folder / "sentinel.conf"
        if not file.exists():
            file.write_text(
                f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {self.watched_port} 1\n"
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n"
                f"sentinel failover-timeout {SERVICE} 5000\n"
            )
        return [str(self.binary), str(file), "--sentinel"]
