"""The blocking driver: runs commands from plain threads, such as the lock keeper's and Spark's.

Guarantee: the rules of `_conversation` hold; threads may share a store; a forked child opens its own connections.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Self, TypeVar, cast

import hiredis
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError

from toril.commands.command import Command
from toril.commands.read import server_time
from toril.errors import Closed, TorilError
from toril.transport import _embedded
from toril.transport._connection import packed
from toril.transport._redis_py import (
    TROUBLE,
    MasterNotFoundError,
    blocking_connection,
    blocking_primary,
    not_sent,
)
from toril.transport._retry_protocol import Conversation, Drop, Lost, NotSent, Pause, Send, converse
from toril.transport._slots import Node, SlotMap
from toril.transport.address import Address, parse_address
from toril.transport.clock import SAMPLES, ServerClock
from toril.transport.policy import ConnectionPolicy, checked_policy

T = TypeVar("T")


class BlockingTransport:
    """Runs commands from threads, each call on a free connection of its own."""

    def __init__(
        self, redis: Any = None, *, policy: ConnectionPolicy | None = None, name: str | None = None
    ) -> None:
        self.address: Address = parse_address(redis)
        self.policy = checked_policy(policy)
        self.clock = ServerClock()
        self._name = name
        self._lease: _embedded.Lease | None = None
        self._slots = SlotMap(self.address.nodes) if self.address.is_cluster else None
        self._free: dict[Node | None, list[Any]] = {}
        self._busy: set[Any] = set()  # so that closing ends a call to a silent server
        self._lock = threading.Lock()
        self._leasing = threading.Lock()
        self._pid = os.getpid()
        self._closed = False

    def __repr__(self) -> str:
        return f"BlockingTransport({self.address.label})"

    @property
    def is_cluster(self) -> bool:
        return self._slots is not None

    # --- running commands -----------------------------------------------------------------------------------

    def run(self, command: Command[T], *, timeout: float | None = None) -> T:
        """The value of one command, or its error raised."""
        (result,) = self._hold(converse((command,), self.policy, self._slots), timeout)
        if isinstance(result, TorilError):
            raise result
        return cast("T", result)

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """All commands in one pipeline; errors stand in the place of values and are not raised."""
        return self._hold(converse(commands, self.policy, self._slots), None) if commands else []

    def run_blocking(self, command: Command[T], timeout: float) -> T:
        """A command that may block for `timeout` seconds."""
        return self.run(command, timeout=timeout + self.policy.block_margin)

    def now_ms(self) -> int:
        """The server's time, asked anew when our idea of it is old."""
        if self.clock.stale:
            self.refresh_clock()
        return self.clock.now_ms()

    def refresh_clock(self) -> None:
        samples = []
        for _ in range(SAMPLES):
            sent = time.monotonic()
            seconds = self.run(server_time())
            samples.append((seconds, sent, time.monotonic()))
        self.clock.learn_best(samples)

    def connect(self) -> None:
        """Makes sure that the server can be reached, once, within the policy."""
        self.refresh_clock()

    def _hold(self, conversation: Conversation, timeout: float | None) -> list[Any]:
        """Does what the conversation asks, until it has its results."""
        limit = timeout if timeout is not None else self.policy.command_timeout
        outcome: Any = None
        try:
            while True:
                effect = conversation.send(outcome)
                match effect:
                    case Send(node, words):
                        outcome = self._send(node, words, limit)
                    case Pause(seconds):
                        outcome = None
                        time.sleep(seconds)
                    case Drop(node):
                        outcome = None
                        self._drop(node)
        except StopIteration as end:
            return cast("list[Any]", end.value)

    def _send(self, node: Node | None, words: list[Any], timeout: float) -> list[Any]:
        message = b"".join([packed(one) for one in words])  # before a connection is taken: it may fail
        try:
            connection = self._take(node)
        except NotSent as error:
            return [error] * len(words)
        self._busy.add(connection)
        try:
            return self._exchange(node, connection, message, len(words), timeout)
        finally:
            self._busy.discard(connection)

    def _exchange(
        self, node: Node | None, connection: Any, message: bytes, count: int, timeout: float
    ) -> list[Any]:
        try:
            connection.send_packed_command([message], check_health=False)
        except TROUBLE as error:
            # Some bytes may have left: a script could have run.
            return [self._lost(connection, error)] * count
        replies = self._read(connection, count, timeout)
        if not any(isinstance(reply, Lost) for reply in replies):
            self._give_back(node, connection)
        return replies

    def _read(self, connection: Any, count: int, timeout: float) -> list[Any]:
        replies: list[Any] = []
        while len(replies) < count:
            try:
                # An error reply is a reply: the connection lives, and more may follow.
                replies.append(
                    connection.read_response(
                        disable_decoding=True, timeout=timeout, disconnect_on_error=False
                    )
                )
            except (ResponseError, BusyLoadingError, AuthenticationError) as error:
                replies.append(_as_reply_error(error))
            except TROUBLE as error:
                lost = self._lost(connection, error)
                replies += [lost] * (count - len(replies))
            except BaseException:
                connection.disconnect()  # An interrupted thread leaves no half-read connection to others.
                raise
        return replies

    @staticmethod
    def _lost(connection: Any, error: BaseException) -> Lost:
        connection.disconnect()
        return Lost(str(error) or type(error).__name__)

    # --- connections ----------------------------------------------------------------------------------------

    def _take(self, node: Node | None) -> Any:
        self._after_fork()
        if self._closed:
            raise Closed(f"the connection to {self.address.label} was closed")
        while (connection := self._pop_free(node)) is not None:
            if _is_quiet(connection):
                return connection
            connection.disconnect()
        return self._connect(node)

    def _pop_free(self, node: Node | None) -> Any:
        with self._lock:
            free = self._free.get(node)
            return free.pop() if free else None

    def _connect(self, node: Node | None) -> Any:
        address = self._resolved()
        try:
            if address.kind == "sentinel" and node is None:
                node = blocking_primary(address, self.policy)
            connection = blocking_connection(address, node, self.policy, self._name)
            self._greet(connection)
        except (MasterNotFoundError, *TROUBLE) as error:
            raise not_sent(error, address.login.get("db", 0)) from error
        return connection

    def _greet(self, connection: Any) -> None:
        self._busy.add(connection)
        try:
            connection.connect()
        finally:
            self._busy.discard(connection)
        if self._closed:  # meanwhile, by another thread
            connection.disconnect()
            raise Closed(f"the connection to {self.address.label} was closed")

    def _give_back(self, node: Node | None, connection: Any) -> None:
        with self._lock:
            free = self._free.setdefault(node, [])
            if not self._closed and len(free) < self.policy.max_connections:
                free.append(connection)
                return
        connection.disconnect()

    def _drop(self, node: Node | None) -> None:
        with self._lock:
            stale = self._free.pop(node, [])
        for connection in stale:
            connection.disconnect()

    def _resolved(self) -> Address:
        if self.address.embedded is None:
            return self.address
        with self._leasing:
            if self._lease is None:
                self._lease = _embedded.lease(self.address.embedded)
            return self._lease.address

    def _after_fork(self) -> None:
        """Sockets and leases of the parent are not ours to use or to end."""
        if self._pid != os.getpid():
            self._pid, self._free, self._busy, self._lease = os.getpid(), {}, set(), None
            self._lock, self._leasing = threading.Lock(), threading.Lock()

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes all connections and lets the embedded server go. May be called twice."""
        self._after_fork()
        self._closed = True
        with self._lock:
            stale = [connection for free in self._free.values() for connection in free]
            stale += self._busy
            self._free.clear()
        for connection in stale:
            connection.disconnect()
        if self._lease is not None:
            lease, self._lease = self._lease, None
            lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_quiet(connection: Any) -> bool:
    """Whether nothing has arrived while nobody asked: an end of the connection, above all.

    A command sent into a connection that the server has closed counts as lost, though it never ran.
    """
    try:
        return not connection.can_read(0)
    except TROUBLE:
        return False


# redis-py takes the first word off the messages of errors it knows; we read faults by that word.
_TAKEN_OFF = {
    "NoScriptError": "NOSCRIPT",
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ExecAbortError": "EXECABORT",
    "AuthenticationError": "NOAUTH",
}


def _as_reply_error(error: RedisError) -> hiredis.ReplyError:
    word = _TAKEN_OFF.get(type(error).__name__)
    text = str(error)
    return hiredis.ReplyError(text if word is None or text.startswith(word) else f"{word} {text}")
