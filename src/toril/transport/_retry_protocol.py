"""What we say to the server about a list of commands, and what we do about its answers, without any I/O.

Guarantee: a command whose reply was lost is repeated only if that is harmless; one that the server refused unexecuted,
or that never left this machine, is repeated within the policy; NOSCRIPT, MOVED and ASK are answered at once.

The conversation is a generator. It yields what it wants done (`Send`, `Pause`) and is sent the outcome. The asyncio and
the blocking driver both just do what it asks, so the rules stand here once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

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
MAX_HOPS = 16


@dataclass(slots=True)
class Send:
    """Send these commands to a node (None: the one server there is) as one write; the outcome is a list of replies,
    where a reply may be a `NotSent`, a `Lost` or an error reply."""

    node: Node | None
    words: list[tuple[Arg, ...]]


@dataclass(slots=True)
class Pause:
    """Wait this many seconds."""

    seconds: float


@dataclass(slots=True)
class Drop:
    """Close the connections to this node: they lead to the wrong server."""

    node: Node | None


class NotSent(Exception):
    """The command never left this machine; its cause says why."""


class Denied(NotSent):
    """The command never left this machine, because the server does not let us in."""


class NoDatabase(NotSent):
    """The command never left this machine, because the server lacks the database that the address names."""


class Lost(Exception):
    """The command was sent, and its reply will not come."""


Effect = Send | Pause | Drop
Conversation = Generator[Effect, Any, list[Any]]


class _Unanswered:
    """Stands for a result that is not there yet."""


_OPEN: Any = _Unanswered()


def converse(
    commands: Sequence[Command[Any]], policy: ConnectionPolicy, slots: SlotMap | None
) -> Conversation:
    """Results in order: a decoded value, or the error of that command."""
    if len(commands) == 1 and slots is None:
        return _simple(commands[0], policy)
    return _Talk(commands, policy, slots).run()


def _simple(command: Command[Any], policy: ConnectionPolicy) -> Conversation:
    """The common case, one command for one server, without the bookkeeping of the general one."""
    (reply,) = yield Send(None, [command.evalsha()])
    if not isinstance(reply, Exception):
        return [decoded(command, reply)]
    talk = _Talk([command], policy, None)
    return (yield from talk.run([reply]))


def decoded(command: Command[Any], reply: Any) -> Any:
    """The value of a reply, or the error that it stands for."""
    try:
        return command.decode(reply)
    except TorilError as error:
        return error
    except Exception as error:  # noqa: BLE001  # A reply of a shape nobody expects is one call's trouble, not the link's.
        return ScriptFailed(f"the reply to {command.name} cannot be read: {error!r}")


def continued(
    command: Command[Any],
    error: Exception,
    node: Node | None,
    policy: ConnectionPolicy,
    slots: SlotMap | None,
) -> Conversation:
    """Continues with a command whose first reply, from `node`, was an error."""
    return _Talk([command], policy, slots).run([error], node)


class _Talk:
    """The state of one conversation: what is answered, what must be asked again, and where."""

    def __init__(
        self, commands: Sequence[Command[Any]], policy: ConnectionPolicy, slots: SlotMap | None
    ) -> None:
        self._commands = commands
        self._policy = policy
        self._slots = slots
        self._results: list[Any] = [_OPEN] * len(commands)
        self._as_text: set[int] = set()
        self._ask_at: dict[int, Node] = {}
        self._hops = 0
        self._attempts = 0
        self._trouble: Exception | None = None

    def run(self, first_replies: list[Any] | None = None, node: Node | None = None) -> Conversation:
        if first_replies is not None:
            yield from self._judge_all(node, range(len(self._commands)), first_replies)
        while open_ones := [i for i, result in enumerate(self._results) if result is _OPEN]:
            if self._trouble is not None and not (yield from self._pause_or_give_up(open_ones)):
                break
            yield from self._learn_slots()
            for node, members in self._by_node(open_ones).items():
                words, replied = self._outgoing(members)
                replies = yield Send(node, words)
                yield from self._judge_all(node, members, [replies[at] for at in replied])
        return self._results

    def _pause_or_give_up(self, open_ones: list[int]) -> Generator[Effect, Any, bool]:
        trouble, self._trouble = self._trouble, None
        self._attempts += 1
        if self._attempts >= self._policy.call_attempts:
            for i in open_ones:
                self._results[i] = trouble
            return False
        yield Pause(self._policy.delay_before(self._attempts - 1))
        return True

    # --- where to -------------------------------------------------------------------------------------------

    def _learn_slots(self) -> Conversation:
        slots = self._slots
        if slots is None or slots.known:
            return []
        for node in slots.nodes:
            (reply,) = yield Send(node, [("CLUSTER", "SLOTS")])
            if not isinstance(reply, Exception):
                slots.learn(reply, node)
                break
            self._trouble = RedisUnavailable(f"no node of the cluster tells its slots: {reply}")
        else:
            return []
        self._trouble = None
        return []

    def _by_node(self, members: list[int]) -> dict[Node | None, list[int]]:
        if self._slots is None:
            return {None: members}
        groups: dict[Node | None, list[int]] = {}
        for i in members:
            node = self._ask_at.get(i) or self._slots.node_of(route_key(self._commands[i]))
            if node is None:
                self._slots.forget()
                self._trouble = RedisUnavailable(
                    "CLUSTERDOWN: the slot of the queue is not served by any node"
                )
                continue
            groups.setdefault(node, []).append(i)
        return groups

    def _outgoing(self, members: list[int]) -> tuple[list[tuple[Arg, ...]], list[int]]:
        """The words to send, and at which places among the replies those to our commands will stand."""
        words: list[tuple[Arg, ...]] = []
        replied: list[int] = []
        taught: set[str] = set()
        for i in members:
            if self._ask_at.pop(i, None) is not None:
                words.append(("ASKING",))
            replied.append(len(words))
            words.append(self._spoken(i, taught))
        return words, replied

    def _spoken(self, i: int, taught: set[str]) -> tuple[Arg, ...]:
        """A script's text is sent once in a write: by the next command the server knows it."""
        command = self._commands[i]
        if i not in self._as_text or command.script is None or command.script.sha1 in taught:
            return command.evalsha()
        taught.add(command.script.sha1)
        return command.eval()

    # --- what came back -------------------------------------------------------------------------------------

    def _judge_all(
        self, node: Node | None, members: Sequence[int], replies: list[Any]
    ) -> Generator[Effect, Any, None]:
        wrong_server = False
        for i, reply in zip(members, replies, strict=True):
            if isinstance(reply, Exception):
                wrong_server |= self._judge_error(i, node, reply) is Fault.RECONNECT
            else:
                self._results[i] = decoded(self._commands[i], reply)
        if wrong_server:
            yield Drop(node)

    def _judge_error(self, i: int, asked: Node | None, error: Exception) -> Fault | None:
        if isinstance(error, Denied):
            self._results[i] = AccessDenied(str(error))
            return None
        if isinstance(error, NoDatabase):
            self._results[i] = NoSuchDatabase(str(error))
            return None
        if isinstance(error, NotSent):
            self._unreachable(RedisUnavailable(f"Redis cannot be reached: {error}"))
            return None
        if isinstance(error, Lost):
            self._lost(i, error)
            return None
        fault = fault_of(error)
        match fault:
            case Fault.NO_SCRIPT:
                self._as_text.add(i)
            case Fault.MOVED | Fault.ASK:
                self._redirect(i, asked, error, fault)
            case Fault.LATER | Fault.RECONNECT:
                self._trouble = translate(error)
                self._doubt_slots()
            case Fault.FINAL:
                self._results[i] = translate(error)
        return fault

    def _unreachable(self, trouble: RedisUnavailable) -> None:
        self._trouble = trouble
        self._doubt_slots()

    def _lost(self, i: int, error: Lost) -> None:
        command = self._commands[i]
        lost = ReplyLost(f"the reply to {command.name} was lost: {error}")
        if command.replay is Replay.SAFE:
            self._unreachable(lost)
        else:
            self._results[i] = lost
            self._doubt_slots()

    def _redirect(self, i: int, asked: Node | None, error: Exception, fault: Fault) -> None:
        self._hops += 1
        if self._slots is None or asked is None or self._hops > MAX_HOPS * len(self._commands):
            hint = "this is a cluster: use redis+cluster://" if self._slots is None else None
            self._results[i] = RedisUnavailable(str(error), hint=hint)
            return
        slot, node = redirection(error, asked)
        if fault is Fault.ASK:
            self._ask_at[i] = node
        else:
            self._slots.moved(slot, node)

    def _doubt_slots(self) -> None:
        if self._slots is not None:
            self._slots.forget()
