"""The blocking transport: runs commands from threads, such as the lock renewer's and Spark's.

Guarantee: commands follow the retry protocol; threads may share a transport; a forked child opens its own connections.
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
from toril.commands.server import server_time
from toril.errors import Closed, TorilError
from toril.transport._connection import packed
from toril.transport._embedded import LeasedServer, lease_server
from toril.transport._redis_py import (
    CONNECTION_ERRORS,
    BlockingRedisConnection,
    MasterNotFoundError,
    blocking_connection,
    blocking_primary,
    not_sent,
)
from toril.transport._retry_protocol import (
    Disconnect,
    Lost,
    NotSent,
    Pause,
    Reply,
    Request,
    RetryProtocol,
    RetrySteps,
    Send,
    StepResult,
    decoded,
)
from toril.transport._slots import Node, SlotMap, route_key
from toril.transport.address import Address, parse_address
from toril.transport.clock import SAMPLES, ServerClock
from toril.transport.policy import ConnectionPolicy, checked_policy

T = TypeVar("T")


class BlockingTransport:
    """Runs commands from threads; each call has a connection of its own while it runs."""

    def __init__(
        self, redis: object = None, *, policy: ConnectionPolicy | None = None, name: str | None = None
    ) -> None:
        self.address: Address = parse_address(redis)
        self.policy = checked_policy(policy)
        self.clock = ServerClock()
        self._name = name
        self._leased: LeasedServer | None = None
        self._slots = SlotMap(self.address.nodes) if self.address.is_cluster else None
        self._free: dict[Node | None, list[BlockingRedisConnection]] = {}
        self._busy: set[BlockingRedisConnection] = set()  # `close` ends their calls, too
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
        """Runs one command; returns its value or raises its error."""
        result = self._result_of(command, self.policy.command_timeout if timeout is None else timeout)
        if isinstance(result, TorilError):
            raise result
        return cast("T", result)

    def _result_of(self, command: Command[T], timeout: float) -> object:
        """Sends the command once; the retry protocol begins with an error reply, or where the node is not known."""
        node, replies = None, None
        if self._slots is not None:
            node = self._slots.known_node_of(route_key(command))
        if self._slots is None or node is not None:
            replies = self._send(node, [command.evalsha()], timeout)
            if not isinstance(replies[0], Exception):
                return decoded(command, replies[0])
        protocol = RetryProtocol((command,), self.policy, self._slots)
        return self._follow(protocol.steps(replies, node), timeout)[0]

    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        """Runs commands in one pipeline; returns their values, with a `TorilError` for each that failed."""
        if not commands:
            return []
        protocol = RetryProtocol(commands, self.policy, self._slots)
        return self._follow(protocol.steps(), self.policy.command_timeout)

    def run_blocking(self, command: Command[T], timeout: float) -> T:
        """Runs a command that may block for `timeout` seconds."""
        return self.run(command, timeout=timeout + self.policy.block_margin)

    def now_ms(self) -> int:
        """Returns the server's time, which is read again when the clock is stale."""
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
        """Connects, or raises if the server cannot be reached within the policy."""
        self.refresh_clock()

    def _follow(self, steps: RetrySteps, timeout: float) -> list[object]:
        """Takes the steps of a retry protocol and returns its results."""
        result: StepResult = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as end:
                results: list[object] = end.value
                return results
            result = None
            match step:
                case Send(node, requests):
                    result = self._send(node, requests, timeout)
                case Pause(seconds):
                    time.sleep(seconds)
                case Disconnect(node):
                    self._disconnect_free(node)

    def _send(self, node: Node | None, requests: list[Request], timeout: float) -> list[Reply]:
        # Packed before a connection is taken: it may fail.
        message = b"".join([packed(one) for one in requests])
        try:
            connection = self._take(node)
        except NotSent as error:
            return [error] * len(requests)
        self._busy.add(connection)
        try:
            return self._exchange(node, connection, message, len(requests), timeout)
        finally:
            self._busy.discard(connection)

    def _exchange(
        self,
        node: Node | None,
        connection: BlockingRedisConnection,
        message: bytes,
        count: int,
        timeout: float,
    ) -> list[Reply]:
        try:
            connection.send_packed_command([message], check_health=False)
        except CONNECTION_ERRORS as error:
            # Some bytes may have been sent: a script could have run.
            return [self._lost(connection, error)] * count
        replies = self._read(connection, count, timeout)
        if not any(isinstance(reply, Lost) for reply in replies):
            self._give_back(node, connection)
        return replies

    def _read(self, connection: BlockingRedisConnection, count: int, timeout: float) -> list[Reply]:
        replies: list[Reply] = []
        while len(replies) < count:
            try:
                # An error reply is a reply: the connection stays open, and more may follow.
                replies.append(
                    connection.read_response(
                        disable_decoding=True, timeout=timeout, disconnect_on_error=False
                    )
                )
            except (ResponseError, BusyLoadingError, AuthenticationError) as error:
                replies.append(_as_reply_error(error))
            except CONNECTION_ERRORS as error:
                lost = self._lost(connection, error)
                replies += [lost] * (count - len(replies))
            except BaseException:
                connection.disconnect()  # an interrupted thread must not leave a half-read connection to others
                raise
        return replies

    @staticmethod
    def _lost(connection: BlockingRedisConnection, error: BaseException) -> Lost:
        connection.disconnect()
        return Lost(str(error) or type(error).__name__)

    # --- connections ----------------------------------------------------------------------------------------

    def _take(self, node: Node | None) -> BlockingRedisConnection:
        self._after_fork()
        if self._closed:
            raise Closed(f"the connection to {self.address.label} was closed")
        while (connection := self._pop_free(node)) is not None:
            if _is_usable(connection):
                return connection
            connection.disconnect()
        return self._connect(node)

    def _pop_free(self, node: Node | None) -> BlockingRedisConnection | None:
        with self._lock:
            free = self._free.get(node)
            return free.pop() if free else None

    def _connect(self, node: Node | None) -> BlockingRedisConnection:
        address = self._server_address()
        try:
            if address.kind == "sentinel" and node is None:
                node = blocking_primary(address, self.policy)
            connection = blocking_connection(address, node, self.policy, self._name)
            self._log_in(connection)
        except (MasterNotFoundError, *CONNECTION_ERRORS) as error:
            raise not_sent(error, address.login.get("db", 0)) from error
        return connection

    def _log_in(self, connection: BlockingRedisConnection) -> None:
        self._busy.add(connection)
        try:
            connection.connect()
        finally:
            self._busy.discard(connection)
        if self._closed:  # by another thread, while it connected
            connection.disconnect()
            raise Closed(f"the connection to {self.address.label} was closed")

    def _give_back(self, node: Node | None, connection: BlockingRedisConnection) -> None:
        with self._lock:
            free = self._free.setdefault(node, [])
            if not self._closed and len(free) < self.policy.max_connections:
                free.append(connection)
                return
        connection.disconnect()

    def _disconnect_free(self, node: Node | None) -> None:
        with self._lock:
            stale = self._free.pop(node, [])
        for connection in stale:
            connection.disconnect()

    def _server_address(self) -> Address:
        if self.address.embedded is None:
            return self.address
        with self._leasing:
            if self._leased is None:
                self._leased = lease_server(self.address.embedded)
            return self._leased.address

    def _after_fork(self) -> None:
        """Drops the sockets and the lease of the parent: a forked child must not use or end them."""
        if self._pid != os.getpid():
            self._pid, self._free, self._busy, self._leased = os.getpid(), {}, set(), None
            self._lock, self._leasing = threading.Lock(), threading.Lock()

    # --- closing --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes all connections and releases the embedded server. May be called twice."""
        self._after_fork()
        self._closed = True
        with self._lock:
            stale = [connection for free in self._free.values() for connection in free]
            stale += self._busy
            self._free.clear()
        for connection in stale:
            connection.disconnect()
        if self._leased is not None:
            leased, self._leased = self._leased, None
            leased.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_usable(connection: BlockingRedisConnection) -> bool:
    """Whether nothing has arrived on an idle connection; what arrives is mostly its end.

    A command sent on a connection that the server has closed counts as lost, though it was not executed.
    """
    try:
        return not connection.can_read(0)
    except CONNECTION_ERRORS:
        return False


# redis-py removes the first word from the messages of these errors; `fault_of` needs it.
_REMOVED_WORDS = {
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
    word = _REMOVED_WORDS.get(type(error).__name__)
    text = str(error)
    return hiredis.ReplyError(text if word is None or text.startswith(word) else f"{word} {text}")
