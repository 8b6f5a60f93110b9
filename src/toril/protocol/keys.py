"""Every Redis key, named once.

Guarantee: a `QueueKeys` computes each key when it is made and never again, in exactly the layout that BullMQ
uses, and no name or id that passes the checks here can collide with a key of the queue itself.

    standalone        bull:emails:wait            Node's layout
    cluster           bull:{emails}:wait          one slot per queue; Node calls this queue "{emails}"
    own hash tag      {bull}:emails:wait          a prefix or name that has a tag gets no second one
    toril's own       bull:emails:toril:<what>    removed by toril's obliterate, ignored by other clients
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field, replace
from typing import Literal

from toril.errors import InvalidOption
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX

MAX_NAME_LENGTH = 255  # of queue names, job names and job ids

# Words that are keys of the queue itself: a job of that id would overwrite the queue's own data.
# fmt: off
RESERVED_IDS = frozenset({
    "active", "completed", "de", "delayed", "dn", "events", "failed", "id", "limiter", "marker", "meta", "metrics",
    "paused", "pc", "prioritized", "priority", "repeat", "stalled", "stalled-check", "toril", "wait",
    "waiting", "waiting-children",
})
# fmt: on

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_INTEGER = re.compile(r"-?[1-9][0-9]*|0")
_NOT_IN_CLIENT_NAME = re.compile(r"[^!-~]")  # CLIENT SETNAME takes printable ASCII without spaces


def has_hash_tag(key: str) -> bool:
    """Whether a cluster hashes only a part of `key`: the first `{`, a `}` after it, something in between."""
    start = key.find("{")
    return start >= 0 and key.find("}", start + 1) > start + 1


def hash_tag_of(key: str) -> str:
    """The part of `key` that a cluster hashes: the text in its first braces, or all of it."""
    start = key.find("{")
    end = key.find("}", start + 1)
    return key[start + 1 : end] if start >= 0 and end > start + 1 else key


def check_text(field_name: str, value: object) -> str:
    """`value` if it is a short, printable, encodable, non-empty string."""
    if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= MAX_NAME_LENGTH:
        return value  # nearly all names: each message has five of them
    if not isinstance(value, str):
        raise InvalidOption(field_name, f"must be a string, not {type(value).__name__}", "give text")
    if not value:
        raise InvalidOption(field_name, "is empty", "give at least one character")
    if len(value) > MAX_NAME_LENGTH:
        raise InvalidOption(
            field_name, f"has {len(value)} characters", f"at most {MAX_NAME_LENGTH} are allowed"
        )
    if _CONTROL.search(value):
        raise InvalidOption(field_name, "contains control characters", "use printable characters only")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidOption(field_name, "contains a lone surrogate", "use valid Unicode text") from None
    return value


def check_queue_name(name: object) -> str:
    """`name` if Node would accept it as a queue name, too."""
    text = check_text("queue", name)
    if ":" in text:
        raise InvalidOption("queue", 'contains ":"', 'use "." or "-" to structure queue names')
    return text


def check_job_id(job_id: object, *, field_name: str = "job_id", allow_integer: bool = False) -> str:
    """`job_id` if it can be stored without breaking the queue or other clients.

    Integers belong to the counter of `ids="counter"`; ":" is allowed only in the three-part ids that
    schedulers make (`repeat:<key>:<time>`).
    """
    text = check_text(field_name, job_id)
    if not allow_integer and _INTEGER.fullmatch(text):
        raise InvalidOption(field_name, f"{text!r} is an integer", 'add a prefix, e.g. "order-17"')
    parts = text.split(":")
    if len(parts) not in (1, 3) or (parts[0] == "0" and len(parts) > 1):
        raise InvalidOption(field_name, 'contains ":"', 'use "-" or "_" instead')
    if parts[0] in RESERVED_IDS and not (parts[0] == "repeat" and len(parts) == 3):
        raise InvalidOption(field_name, f"{parts[0]!r} is a reserved word", "choose another id")
    return text


def check_prefix(prefix: object) -> str:
    """`prefix` if keys can be built from it; it may contain ":" and a hash tag."""
    return check_text("prefix", prefix)


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of a queue. `hash_tag=None` leaves the layout to `resolve`, once the server is known."""

    name: str
    prefix: str = BULLMQ_PREFIX
    hash_tag: bool | None = None
    # The queue exists already: its name was found in a key, and another program may have chosen any.
    found: bool = field(default=False, repr=False, compare=False, kw_only=True)

    # What Node calls this queue: with braces if it has them.
    node_name: str = field(init=False, repr=False, compare=False)
    # "bull:emails": how a parent's queue is named in its children.
    qualified: str = field(init=False, repr=False, compare=False)
    base: str = field(init=False, repr=False, compare=False)  # "bull:emails:"
    wait: str = field(init=False, repr=False, compare=False)
    active: str = field(init=False, repr=False, compare=False)
    paused: str = field(init=False, repr=False, compare=False)
    prioritized: str = field(init=False, repr=False, compare=False)
    delayed: str = field(init=False, repr=False, compare=False)
    completed: str = field(init=False, repr=False, compare=False)
    failed: str = field(init=False, repr=False, compare=False)
    waiting_children: str = field(init=False, repr=False, compare=False)
    stalled: str = field(init=False, repr=False, compare=False)
    stalled_check: str = field(init=False, repr=False, compare=False)
    limiter: str = field(init=False, repr=False, compare=False)
    meta: str = field(init=False, repr=False, compare=False)
    events: str = field(init=False, repr=False, compare=False)
    marker: str = field(init=False, repr=False, compare=False)
    id: str = field(init=False, repr=False, compare=False)
    pc: str = field(init=False, repr=False, compare=False)
    repeat: str = field(init=False, repr=False, compare=False)
    de: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.found:
            check_prefix(self.prefix)
            check_queue_name(self.name)
        tagged = self.hash_tag is True and not has_hash_tag(f"{self.prefix}:{self.name}:")
        node_name = f"{{{self.name}}}" if tagged else self.name
        qualified = f"{self.prefix}:{node_name}"
        if self.hash_tag is True and not has_hash_tag(qualified):
            culprit = "queue" if self.name.startswith("}") else "prefix"
            raise InvalidOption(culprit, 'makes "{}", which switches hash tags off', "remove the brace")
        self._set("node_name", node_name)
        self._set("qualified", qualified)
        self._set("base", f"{qualified}:")
        for attribute in _SUFFIXES:
            self._set(attribute, f"{qualified}:{attribute.replace('_', '-')}")

    def _set(self, attribute: str, value: str) -> None:
        object.__setattr__(self, attribute, value)

    def resolve(self, *, cluster: bool) -> QueueKeys:
        """These keys for a known kind of server: an undecided hash tag is set on a cluster only."""
        return self if self.hash_tag is not None else replace(self, hash_tag=cluster)

    def other_layout(self) -> QueueKeys | None:
        """The keys under which the same queue would live with the other layout, if there is another."""
        if self.node_name != self.name:
            return replace(self, hash_tag=False)
        if has_hash_tag(self.base) or has_hash_tag(f"{self.prefix}:{{{self.name}}}") is False:
            return None
        return replace(self, hash_tag=True)

    def job(self, job_id: str) -> str:
        """The hash of one job."""
        return self.base + job_id

    def lock(self, job_id: str) -> str:
        """The lock of one job: the token of its worker, with a time to live."""
        return f"{self.base}{job_id}:lock"

    def logs(self, job_id: str) -> str:
        """The log lines of one job."""
        return f"{self.base}{job_id}:logs"

    def dependencies(self, job_id: str) -> str:
        """The unfinished children of one job."""
        return f"{self.base}{job_id}:dependencies"

    def processed(self, job_id: str) -> str:
        """The results of the children that completed."""
        return f"{self.base}{job_id}:processed"

    def ignored_failures(self, job_id: str) -> str:
        """The reasons of the children whose failure the parent ignores."""
        return f"{self.base}{job_id}:failed"

    def unsuccessful(self, job_id: str) -> str:
        """The children whose failure counts against the parent."""
        return f"{self.base}{job_id}:unsuccessful"

    def deduplication(self, deduplication_id: str) -> str:
        """The key that holds the job id for one deduplication id."""
        return f"{self.de}:{deduplication_id}"

    def next_job(self, deduplication_id: str) -> str:
        """The hash of the job that follows the active job of one deduplication id, as BullMQ 6 stores it."""
        return f"{self.base}dn:{deduplication_id}"

    def metrics(self, kind: Literal["completed", "failed"]) -> str:
        """The hash of finished jobs per minute; its points are in `<this>:data`."""
        return f"{self.base}metrics:{kind}"

    def toril(self, what: str) -> str:
        """Returns a key of toril's own."""
        return f"{self.base}toril:{what}"


_SUFFIXES = (
    "wait",
    "active",
    "paused",
    "prioritized",
    "delayed",
    "completed",
    "failed",
    "waiting_children",
    "stalled",
    "stalled_check",
    "limiter",
    "meta",
    "events",
    "marker",
    "id",
    "pc",
    "repeat",
    "de",
)


def client_name(keys: QueueKeys, kind: Literal["worker", "events"], worker_name: str | None = None) -> str:
    """The `CLIENT SETNAME` by which Node and bull-board recognise a worker or event reader of the queue."""
    encoded = base64.b64encode(keys.node_name.encode()).decode("ascii")
    name = f"{keys.prefix}:{encoded}"
    if kind == "events":
        name += ":qe"
    elif worker_name:
        name += f":w:{worker_name}"
    return _NOT_IN_CLIENT_NAME.sub("_", name)


def _check_purpose(purpose: str, prefix: str, env: str) -> None:
    check_prefix(prefix)
    for field_name, value in (("env", env), ("queue", purpose)):
        if ":" in check_text(field_name, value):
            raise InvalidOption(field_name, 'contains ":"', 'use "." or "-" instead')


def _purpose_base(kind: str, purpose: str, prefix: str, env: str, hash_tag: bool) -> str:
    plain = f"{prefix}:{env}:{kind}:{purpose}"
    if not hash_tag or has_hash_tag(plain):
        return plain
    tagged = f"{prefix}:{env}:{kind}:{{{purpose}}}"
    if not has_hash_tag(tagged):
        culprit = "queue" if purpose.startswith("}") else "prefix"
        raise InvalidOption(culprit, 'makes "{}", which switches hash tags off', "remove the brace")
    return tagged


@dataclass(frozen=True, slots=True)
class ListKeys:
    """The keys of one list queue: `msaas:prod:queue:jobs.generic` and what belongs to it."""

    purpose: str
    prefix: str = ENVELOPE_PREFIX
    env: str = "prod"
    hash_tag: bool = False
    found: bool = field(default=False, repr=False, compare=False, kw_only=True)  # as in `QueueKeys`

    base: str = field(init=False, repr=False, compare=False)
    queue: str = field(init=False, repr=False, compare=False)  # LIST of envelopes
    scheduled: str = field(init=False, repr=False, compare=False)  # ZSET of envelopes, score = due time
    dlq: str = field(
        init=False, repr=False, compare=False
    )  # STREAM of dead letters, each entry one field `envelope`

    def __post_init__(self) -> None:
        if not self.found:
            _check_purpose(self.purpose, self.prefix, self.env)
        base = _purpose_base("queue", self.purpose, self.prefix, self.env, self.hash_tag)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "queue", base)
        object.__setattr__(self, "scheduled", f"{base}:scheduled")
        object.__setattr__(self, "dlq", f"{base}:dlq")

    def lock(self, job_id: str) -> str:
        """The distributed lock of one job."""
        return f"{self.base}:lock:{job_id}"

    def processing(self, consumer: str) -> str:
        """The processing list of one worker, with reliable pickup."""
        return f"{self.base}:processing:{consumer}"

    def unbegun(self, consumer: str) -> str:
        """The jobs that one worker fetched with reliable pickup and has not confirmed."""
        return self.toril(f"unbegun:{consumer}")

    def toril(self, what: str) -> str:
        """Returns a key of toril's own."""
        return f"{self.base}:toril:{what}"


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The keys of one stream queue: `msaas:prod:stream:jobs.browser` and what belongs to it.

    The consumer group is named after the last part of the purpose (`jobs.browser` → `browser-workers`) unless given.
    """

    purpose: str
    prefix: str = ENVELOPE_PREFIX
    env: str = "prod"
    hash_tag: bool = False
    consumer_group: str = ""
    found: bool = field(default=False, repr=False, compare=False, kw_only=True)  # as in `QueueKeys`

    base: str = field(init=False, repr=False, compare=False)
    stream: str = field(init=False, repr=False, compare=False)  # STREAM, each entry one field `envelope`
    scheduled: str = field(init=False, repr=False, compare=False)  # ZSET of retries, score = due time
    dlq: str = field(init=False, repr=False, compare=False)  # STREAM of dead letters

    def __post_init__(self) -> None:
        if not self.found:
            _check_purpose(self.purpose, self.prefix, self.env)
        base = _purpose_base("stream", self.purpose, self.prefix, self.env, self.hash_tag)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "stream", base)
        object.__setattr__(self, "scheduled", f"{base}:scheduled")
        object.__setattr__(self, "dlq", f"{base}:dlq")
        group = self.consumer_group or f"{self.purpose.rpartition('.')[2] or self.purpose}-workers"
        if not self.found:
            check_text("consumer_group", group)
        object.__setattr__(self, "consumer_group", group)

    def lock(self, job_id: str) -> str:
        """The distributed lock of one job."""
        return f"{self.base}:lock:{job_id}"

    def toril(self, what: str) -> str:
        """Returns a key of toril's own."""
        return f"{self.base}:toril:{what}"


AnyKeys = QueueKeys | ListKeys | StreamKeys

# The consumer that holds the entries that were given back. No worker has this name: those have three parts.
RETURNED_CONSUMER = "toril:returned"


def consumer_name(hostname: str, pid: int, index: int) -> str:
    """A consumer of a stream's consumer group: `{hostname}:{pid}:{index}`."""
    return f"{hostname}:{pid}:{index}"
