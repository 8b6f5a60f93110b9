"""Which server and which queue a command is about.

    emails            a BullMQ queue
    list:NAME         a queue in a Redis list
    stream:NAME       a queue in a Redis stream

Guarantee: `--redis` wins over TORIL_REDIS_URL, and without both it is the embedded server in `./.toril`. Which server
it is, without its password, is the first line on standard error: standard output belongs to the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toril.cli._output import print_server_first
from toril.errors import InvalidOption
from toril.producer import ListQueue, Queue, StreamQueue
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.transport import parse_address, whole_url
from toril.transport.default_server import chosen_url

Kind = Literal["bullmq", "list", "stream"]
AnyQueue = Queue | ListQueue | StreamQueue

DEFAULT_PREFIX = {"bullmq": BULLMQ_PREFIX, "list": ENVELOPE_PREFIX, "stream": ENVELOPE_PREFIX}


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue as it is written in the shell."""

    kind: Kind
    name: str

    @classmethod
    def parse(cls, text: str) -> QueueName:
        kind, colon, name = text.partition(":")
        if not colon:
            return cls("bullmq", text)
        if kind not in ("list", "stream", "bullmq"):
            raise InvalidOption(
                "queue", f"{text!r} has no known kind", "write NAME, list:NAME or stream:NAME"
            )
        return cls(kind, name)  # type: ignore[arg-type]  # checked above

    def __str__(self) -> str:
        return self.name if self.kind == "bullmq" else f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and how keys are named there."""

    redis: str
    prefix: str | None = None  # None: the usual one of each kind
    env: str = "prod"

    @classmethod
    def of(
        cls, redis: str | None = None, prefix: str | None = None, env: str = "prod", *, quiet: bool = False
    ) -> Target:
        """The server that was named, or the default one; which it is will be printed first, unless `quiet`."""
        target = cls(redis=whole_url(chosen_url(redis)), prefix=prefix, env=env)
        if not quiet:
            print_server_first(target.server)
        return target

    @property
    def server(self) -> str:
        """The server's address without its password."""
        return parse_address(self.redis).label

    def prefix_of(self, kind: Kind) -> str:
        return self.prefix or DEFAULT_PREFIX[kind]

    def open(self, queue: QueueName, *, look: bool = False) -> AnyQueue:
        """The queue, not yet connected; `look` leaves no trace in one that is only looked at."""
        match queue.kind:
            case "bullmq":
                return Queue(queue.name, redis=self.redis, prefix=self.prefix_of("bullmq"), skip_meta=look)
            case "list":
                return ListQueue(queue.name, redis=self.redis, prefix=self.prefix_of("list"), env=self.env)
            case "stream":
                return StreamQueue(
                    queue.name, redis=self.redis, prefix=self.prefix_of("stream"), env=self.env
                )

    def envelopes(self, queue: QueueName) -> ListQueue | StreamQueue:
        """The queue, if it is a list or a stream."""
        opened = self.open(queue)
        if isinstance(opened, Queue):
            raise InvalidOption("queue", f"{queue} is a BullMQ queue", "write list:NAME or stream:NAME")
        return opened

    def bullmq(self, queue: QueueName, command: str, *, look: bool = False) -> Queue:
        """The queue, if it is one of BullMQ's; others do not know what `command` asks for."""
        if queue.kind != "bullmq":
            raise InvalidOption(
                "queue", f"{queue} is a {queue.kind} queue", f"`toril {command}` is for BullMQ queues"
            )
        return Queue(queue.name, redis=self.redis, prefix=self.prefix_of("bullmq"), skip_meta=look)
