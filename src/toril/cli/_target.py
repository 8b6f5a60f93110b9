"""The server and the queue of a command.

    emails            a BullMQ queue
    list:NAME         a queue in a Redis list
    stream:NAME       a queue in a Redis stream

Guarantee: `--redis` comes before TORIL_REDIS_URL; without both it is the embedded server in `./.toril`. The first line
on standard error is the server's address without its password.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from toril import producer  # its classes are imported when they are used
from toril.cli._output import set_server_line
from toril.errors import InvalidOption
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.protocol.queue_name import Kind, QueueName
from toril.transport import parse_address, whole_url
from toril.transport.default_server import chosen_url

if TYPE_CHECKING:
    from toril.protocol.cron import CronGeneration

__all__ = ["AnyQueue", "Kind", "QueueName", "Target"]

AnyQueue: TypeAlias = "producer.Queue | producer.ListQueue | producer.StreamQueue"

DEFAULT_PREFIX = {"bullmq": BULLMQ_PREFIX, "list": ENVELOPE_PREFIX, "stream": ENVELOPE_PREFIX}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and the prefix and environment of keys."""

    redis: str
    prefix: str | None = None  # None: the default of each kind
    env: str = "prod"

    @classmethod
    def of(
        cls, redis: str | None = None, prefix: str | None = None, env: str = "prod", *, quiet: bool = False
    ) -> Target:
        """Returns the server that was named, or the default one; its address is printed first, unless `quiet`."""
        target = cls(redis=whole_url(chosen_url(redis)), prefix=prefix, env=env)
        if not quiet:
            set_server_line(target.server)
        return target

    @property
    def server(self) -> str:
        """The server's address without its password."""
        return parse_address(self.redis).label

    def prefix_of(self, kind: Kind) -> str:
        return self.prefix or DEFAULT_PREFIX[kind]

    def open(self, queue: QueueName, *, read_only: bool = False) -> AnyQueue:
        """Returns the queue, not yet connected; with `read_only` nothing is written to it."""
        match queue.kind:
            case "bullmq":
                return producer.Queue(
                    queue.name, redis=self.redis, prefix=self.prefix_of("bullmq"), skip_meta=read_only
                )
            case "list":
                return producer.ListQueue(
                    queue.name, redis=self.redis, prefix=self.prefix_of("list"), env=self.env
                )
            case "stream":
                return producer.StreamQueue(
                    queue.name, redis=self.redis, prefix=self.prefix_of("stream"), env=self.env
                )

    def envelopes(self, queue: QueueName) -> producer.ListQueue | producer.StreamQueue:
        """Returns a list or stream queue; raises InvalidOption for a BullMQ queue."""
        opened = self.open(queue)
        if isinstance(opened, producer.Queue):
            raise InvalidOption("queue", f"{queue} is a BullMQ queue", "write list:NAME or stream:NAME")
        return opened

    def bullmq(
        self,
        queue: QueueName,
        command: str,
        *,
        read_only: bool = False,
        cron_generation: CronGeneration = 5,
    ) -> producer.Queue:
        """Returns a BullMQ queue; raises InvalidOption for another kind, which does not support `command`."""
        if queue.kind != "bullmq":
            raise InvalidOption(
                "queue", f"{queue} is a {queue.kind} queue", f"`toril {command}` is for BullMQ queues"
            )
        return producer.Queue(
            queue.name,
            redis=self.redis,
            prefix=self.prefix_of("bullmq"),
            skip_meta=read_only,
            cron_generation=cron_generation,
        )
