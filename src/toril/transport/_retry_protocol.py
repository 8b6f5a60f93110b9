"""The retry protocol: what is sent for a list of commands and what follows from the replies, without any I/O.

Guarantee: a command whose reply was lost is repeated only if its replay policy allows it. A command that the server did
not execute, or that was not sent, is repeated within the connection policy. NOSCRIPT, MOVED and ASK are followed at
once.

The protocol is a generator. It yields steps (`Send`, `Pause`, `Disconnect`) and is sent their results. The asyncio and
the blocking transport only carry out the steps.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from toril.commands.command import Arg, Command, Replay
from toril.errors import (
    AccessDenied,
    NoSuchDatabase,
    RedisUnavailable,
    ReplyLost,
    ScriptFailed,
    TorilError,
)
from toril.transport._error_replies import Fault, fault_of, redirection, translate
from toril.transport._slots import Node, SlotMap, route_key
from toril.transport.policy import ConnectionPolicy

# Redis' own clients follow at most this many redirections of one command.
MAX_REDIRECTIONS: Final = 16

Request: TypeAlias = tuple[Arg, ...]
"""One command as it is sent: its name and arguments."""

Reply: TypeAlias = object
"""A reply as hiredis reads it, an error reply, a `NotSent` or a `Lost`."""


@dataclass(slots=True)
class Send:
    """Send these requests to a node (None: the only server) in one write. The result is the list of their replies."""

    node: Node | None
    requests: list[Request]


@dataclass(slots=True)
class Pause:
    """Wait this many seconds. The result is None."""

    seconds: float


@dataclass(slots=True)
class Disconnect:
    """Close the connections to this node: they lead to the wrong server. The result is None."""

    node: Node | None


class NotSent(Exception):
    """The command was not sent; the message is the reason."""


class Denied(NotSent):
    """The command was not sent, because the server refused the login."""


class NoDatabase(NotSent):
    """The command was not sent, because the server lacks the database that the address names."""


class Lost(Exception):
    """The command was sent, and its reply will not come."""


Step: TypeAlias = Send | Pause | Disconnect
StepResult: TypeAlias = list[Reply] | None
RetrySteps: TypeAlias = Generator[Step, StepResult, list[object]]


def decoded(command: Command[Any], reply: Reply) -> Any:
    """Returns the value of a reply, or the error that it stands for."""
    try:
        return command.decode(reply)
    except TorilError as error:
        return error
    except Exception as error:  # noqa: BLE001  # a reply that cannot be decoded must not end the connection
        return ScriptFailed(f"the reply to {command.name} cannot be read: {error!r}")


class RetryProtocol:
    """The state of some commands: their results so far, which must be sent again, and where."""

    def __init__(
        self, commands: Sequence[Command[Any]], policy: ConnectionPolicy, slots: SlotMap | None
    ) -> None:
        self._commands = commands
        self._policy = policy
        self._slots = slots
        self._results: list[object] = [None] * len(commands)
        self._unanswered = set(range(len(commands)))
        self._as_text: set[int] = set()  # their scripts are unknown to the server
        self._ask_at: dict[int, Node] = {}  # the nodes that ASK replies named
        self._redirections = 0
        self._attempts = 0
        self._error: TorilError | None = None  # why commands must be sent again after a pause

    def steps(self, first_replies: list[Reply] | None = None, node: Node | None = None) -> RetrySteps:
        """Yields steps until each command has its result: a decoded value or a `TorilError`.

        `first_replies` are the replies of `node` to commands that were sent before.
        """
        if first_replies is not None and self._take_replies(node, range(len(self._commands)), first_replies):
            yield Disconnect(node)
        while self._unanswered:
            if self._error is not None:
                delay = self._delay_or_give_up(self._error)
                if delay is None:
                    break
                yield Pause(delay)
            yield from self._read_slots()
            for node, members in self._by_node().items():
                requests, positions = self._requests(members)
                replies = (yield Send(node, requests)) or []
                if self._take_replies(node, members, [replies[at] for at in positions]):
                    yield Disconnect(node)
        return self._results

    def _delay_or_give_up(self, error: TorilError) -> float | None:
        """Returns the seconds before the next attempt; None, and the error becomes the result, if there is none."""
        self._error = None
        self._attempts += 1
        if self._attempts < self._policy.call_attempts:
            return self._policy.delay_before(self._attempts - 1)
        for i in self._unanswered:
            self._results[i] = error
        return None

    # --- requests -------------------------------------------------------------------------------------------

    def _read_slots(self) -> Generator[Step, StepResult, None]:
        slots = self._slots
        if slots is None or slots.known:
            return
        for node in slots.nodes:
            (reply,) = (yield Send(node, [("CLUSTER", "SLOTS")])) or [None]
            if not isinstance(reply, Exception):
                slots.learn(reply, node)
                self._error = None
                return
            self._error = RedisUnavailable(f"no node of the cluster returns its slots: {reply}")

    def _by_node(self) -> dict[Node | None, list[int]]:
        members = sorted(self._unanswered)
        if self._slots is None:
            return {None: members}
        groups: dict[Node | None, list[int]] = {}
        for i in members:
            node = self._ask_at.get(i) or self._slots.node_of(route_key(self._commands[i]))
            if node is not None:
                groups.setdefault(node, []).append(i)
                continue
            self._send_again(RedisUnavailable("CLUSTERDOWN: the slot of the queue is not served by any node"))
        return groups

    def _requests(self, members: list[int]) -> tuple[list[Request], list[int]]:
        """Returns the requests, and the positions of the replies to our commands among all replies."""
        requests: list[Request] = []
        positions: list[int] = []
        sent_scripts: set[str] = set()
        for i in members:
            if self._ask_at.pop(i, None) is not None:
                requests.append(("ASKING",))
            positions.append(len(requests))
            requests.append(self._request(i, sent_scripts))
        return requests, positions

    def _request(self, i: int, sent_scripts: set[str]) -> Request:
        """The text of a script is sent once in a write: the server knows it when it reads the next command."""
        command = self._commands[i]
        if i not in self._as_text or command.script is None or command.script.sha1 in sent_scripts:
            return command.evalsha()
        sent_scripts.add(command.script.sha1)
        return command.eval()

    # --- replies --------------------------------------------------------------------------------------------

    def _take_replies(self, node: Node | None, members: Sequence[int], replies: list[Reply]) -> bool:
        """Returns whether the node is the wrong server: its connections must be closed."""
        wrong_server = False
        for i, reply in zip(members, replies, strict=True):
            if isinstance(reply, Exception):
                wrong_server |= self._take_error(i, node, reply) is Fault.RECONNECT
            else:
                self._answer(i, decoded(self._commands[i], reply))
        return wrong_server

    def _answer(self, i: int, result: object) -> None:
        self._results[i] = result
        self._unanswered.discard(i)

    def _take_error(self, i: int, node: Node | None, error: Exception) -> Fault | None:
        match error:
            case Denied():
                self._answer(i, AccessDenied(str(error)))
            case NoDatabase():
                self._answer(i, NoSuchDatabase(str(error)))
            case NotSent():
                self._send_again(RedisUnavailable(f"Redis cannot be reached: {error}"))
            case Lost():
                self._take_lost(i, error)
            case _:
                return self._take_error_reply(i, node, error)
        return None

    def _take_error_reply(self, i: int, node: Node | None, error: Exception) -> Fault:
        fault = fault_of(error)
        match fault:
            case Fault.NO_SCRIPT:
                self._as_text.add(i)
            case Fault.MOVED | Fault.ASK:
                self._redirect(i, node, error, fault)
            case Fault.LATER | Fault.RECONNECT:
                self._send_again(translate(error))
            case Fault.FINAL:
                self._answer(i, translate(error))
        return fault

    def _send_again(self, error: TorilError) -> None:
        """Plans another attempt after a pause; on a cluster, the slots are read again before it."""
        self._error = error
        self._forget_slots()

    def _take_lost(self, i: int, error: Lost) -> None:
        command = self._commands[i]
        lost = ReplyLost(f"the reply to {command.name} was lost: {error}")
        if command.replay is Replay.SAFE:
            self._send_again(lost)
        else:
            self._answer(i, lost)
            self._forget_slots()

    def _redirect(self, i: int, node: Node | None, error: Exception, fault: Fault) -> None:
        self._redirections += 1
        limit = MAX_REDIRECTIONS * len(self._commands)
        if self._slots is None or node is None or self._redirections > limit:
            hint = "this is a cluster: use redis+cluster://" if self._slots is None else None
            self._answer(i, RedisUnavailable(str(error), hint=hint))
            return
        slot, target = redirection(error, node)
        if fault is Fault.ASK:
            self._ask_at[i] = target
        else:
            self._slots.moved(slot, target)

    def _forget_slots(self) -> None:
        if self._slots is not None:
            self._slots.forget()
