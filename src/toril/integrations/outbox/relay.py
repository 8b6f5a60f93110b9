"""The relay: reads rows of the outbox, adds their jobs, and marks the rows as sent.

    with OutboxRelay(app, SqlAlchemyStore(engine)) as relay: ...      # a thread of this process
    OutboxRelay(app, store).run()                                     # a process of its own

Guarantee: a job and its entry in the ledger are written in one step, and the entry lives until the row is deleted,
some time after it was marked as sent. So a row that is sent again, because relay, database or Redis died before the
mark was committed, adds nothing, even if its job has ended and was removed. Rows of one key are sent in the order of
their positions; a row that Redis refuses holds back the later rows of its key, and no others.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol, Self

from toril.app import App
from toril.app.task import Task
from toril.commands.bulk_enqueue import Admission, Admitted, Row, enqueue_once, ledger_key
from toril.commands.command import plain
from toril.commands.manage import set_meta
from toril.commands.once import Calls
from toril.errors import InvalidOption, InvalidOutboxRow, RedisOutOfMemory, TorilError
from toril.integrations.outbox.rows import OutboxRow, keys_of
from toril.protocol.keys import QueueKeys
from toril.transport import BlockingTransport

logger = logging.getLogger("toril.outbox")

# The ledger must outlive every outage of the database; its entries are removed one by one.
LEDGER_MS: Final = 10 * 365 * 86_400_000
# An answer of the server takes longer with more rows; this many take some tens of milliseconds.
MOST_ROWS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """How the relay works."""

    rows: int = 500  # in one transaction
    poll: float = 0.5  # seconds between two looks at an empty table
    keep: float = 600.0  # seconds a sent row is kept; longer than any client repeats a call
    longest_pause: float = 5.0  # seconds between two attempts while the database or Redis cannot be reached

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= MOST_ROWS:
            raise InvalidOption("rows", f"is {self.rows}", f"give 1 to {MOST_ROWS}")
        for name in ("poll", "keep", "longest_pause"):
            if not getattr(self, name) > 0:
                raise InvalidOption(name, f"is {getattr(self, name)}", "give seconds above 0")


class OutboxBatch(Protocol):
    """Rows that were read in a transaction, which is open; no other relay has these rows."""

    outbox: str  # the name of this table's ledger
    rows: Sequence[OutboxRow]  # in the order in which they must be sent

    def mark_sent(self, ids: Sequence[str]) -> None:
        """Marks rows as sent."""

    def mark_refused(self, errors: Mapping[str, str]) -> None:
        """Stores why rows cannot be sent, by id; they hold back the later rows of their keys."""


class OutboxStore(Protocol):
    """The table of the outbox."""

    def unsent(self, limit: int) -> AbstractContextManager[OutboxBatch | None]:
        """Reads unsent rows; None while another relay does. Leaving the block commits, an error rolls back."""

    def expired(
        self, keep: float, limit: int
    ) -> AbstractContextManager[tuple[str, Mapping[str, Sequence[str]]]]:
        """The name of the outbox, and the ids by queue of rows that were sent `keep` seconds ago or earlier.

        Leaving the block deletes them.
        """


class OutboxRelay:
    """Sends the rows of one outbox. Several relays may run: one of them sends, the others stand by."""

    def __init__(self, app: App, store: OutboxStore, options: RelayOptions | None = None) -> None:
        self._app = app
        self._store = store
        self.options = options or RelayOptions()
        connection = app.connection
        self._transport = BlockingTransport(connection.address, policy=connection.policy)
        self._calls: dict[str, Calls] = {}  # by queue
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    # --- one step -------------------------------------------------------------------------------------------

    def send_some(self) -> int:
        """Sends one batch; returns the number of rows that were marked as sent, 0 if there are none."""
        with self._store.unsent(self.options.rows) as batch:
            if batch is None or not batch.rows:
                return 0
            sent, refused = self._add(batch)
            batch.mark_sent(sent)
            batch.mark_refused(refused)
            return len(sent)

    def send_all(self) -> int:
        """Sends batches until there is no row; returns their number."""
        total = 0
        while (sent := self.send_some()) and not self._stopping.is_set():
            total += sent
        return total + sent

    def remove_expired(self) -> int:
        """Removes entries of the ledger and rows that were sent long enough ago; returns their number."""
        with self._store.expired(self.options.keep, MOST_ROWS) as (outbox, by_queue):
            for queue, ids in by_queue.items():
                key = ledger_key(self._keys(queue), _run(outbox))
                self._transport.run(plain(int, "HDEL", key, *ids))
            return sum(len(ids) for ids in by_queue.values())

    def _add(self, batch: OutboxBatch) -> tuple[list[str], dict[str, str]]:
        """Adds the jobs of a batch; returns the ids of those that are there, and why others were refused."""
        sent: list[str] = []
        refused: dict[str, str] = {}
        held: set[str | None] = set()  # keys of refused rows
        for queue, rows in in_steps(batch.rows):
            going = [row for row in rows if row.key is None or row.key not in held]
            errors = self._add_to(queue, going, batch.outbox)
            refused |= errors
            held |= {row.key for row in going if row.id in errors}
            sent += [row.id for row in going if row.id not in errors]
        return sent, refused

    def _add_to(self, queue: str, rows: list[OutboxRow], outbox: str) -> dict[str, str]:
        jobs, refused = _jobs_of(rows, self._transport.now_ms())
        if not jobs:
            return refused
        keys = self._keys(queue)
        if queue not in self._calls:
            self._transport.run_many(set_meta(keys))  # as every producer does: Node looks for it
            self._calls[queue] = Calls(keys)
        admission = Admission(run=_run(outbox), ledger_ms=LEDGER_MS, known_by="id")
        reply = self._transport.run(self._calls[queue].once(enqueue_once(keys, jobs, admission)))
        if not isinstance(reply, Admitted):
            raise TorilError(f"the ledger of the outbox {outbox} is used by something else: {reply}")
        for job, result in zip(jobs, reply.rows, strict=True):
            if isinstance(result, TorilError):
                _raise_if_full(result)
                refused[job.digest.decode()] = str(result)
        return refused

    def _keys(self, queue: str) -> QueueKeys:
        return keys_of(self._app, queue, cluster=self._transport.is_cluster)

    # --- the service ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Sends rows until `stop`. What fails is logged, and tried again after a pause."""
        pause = 0.0
        while not self._stopping.is_set():
            try:
                sent = self.send_some()
                removed = 0 if sent else self.remove_expired()
                pause = 0.0
            except Exception:
                pause = min(self.options.longest_pause, max(0.1, 2 * pause))
                logger.exception("The outbox cannot be sent; the next attempt is in %.1f s", pause)
                sent = removed = 0
            if not sent and not removed:
                self._wake.wait(pause or self.options.poll)
                self._wake.clear()

    def wake(self) -> None:
        """Looks for rows now: call it after a commit in the same process."""
        self._wake.set()

    def start(self) -> None:
        """Runs in a thread. May be called twice."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self.run, name="toril-outbox", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends `run` after the current batch, and its thread. May be called twice."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Stops, and closes the connections to Redis."""
        self.stop()
        self._transport.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_steps(rows: Sequence[OutboxRow]) -> Iterator[tuple[str, list[OutboxRow]]]:
    """The rows in calls to the server: in each there is at most one row of a key, so that a refusal can hold others."""
    steps: list[dict[str, list[OutboxRow]]] = []
    seen: Counter[str] = Counter()
    for row in rows:
        step = 0
        if row.key is not None:
            step = seen[row.key]
            seen[row.key] += 1
        while len(steps) <= step:
            steps.append({})
        steps[step].setdefault(row.queue, []).append(row)
    for by_queue in steps:
        yield from by_queue.items()


def declare_relay_task(
    app: App, relay: OutboxRelay, *, queue: str = "toril-outbox", every: float = 1.0
) -> Task[[], int]:
    """Declares a task that sends all rows, and a schedule of it: the workers of the app are the relay."""

    def relay_outbox() -> int:
        relay.remove_expired()
        return relay.send_all()

    task = app.task(queue=queue, remove_on_complete=True)(relay_outbox)
    task.schedule(every=every)
    return task


def _jobs_of(rows: Sequence[OutboxRow], now_ms: int) -> tuple[list[Row], dict[str, str]]:
    """The jobs of rows; why others are none, by id: somebody else has written or changed them."""
    jobs: list[Row] = []
    refused: dict[str, str] = {}
    for row in rows:
        try:
            jobs.append(Row(row.id.encode(), row.to_add(now_ms)))
        except InvalidOutboxRow as error:
            refused[row.id] = str(error)
    return jobs, refused


def _run(outbox: str) -> str:
    return f"outbox:{outbox}"


def _raise_if_full(error: TorilError) -> None:
    """A server without memory has some again later: all rows wait."""
    if isinstance(error, RedisOutOfMemory) or "OOM" in str(error):
        raise RedisOutOfMemory(str(error))
