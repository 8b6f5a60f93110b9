"""What `Job` and `BlockingJob` share: the attributes, and each operation as a generator.

Guarantee: reading an attribute costs no I/O and decodes only that attribute; an operation that succeeds changes the
attributes.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, cast

from toril.commands import manage, read
from toril.commands.checkpoints import save_checkpoint
from toril.commands.command import Command
from toril.commands.locks import extend_lock
from toril.commands.worker import move_to_waiting_children
from toril.errors import InvalidOption, JobNotFound, LockLost, Postpone, Requeue
from toril.jobs._operations import NOW_MS, Operation
from toril.jobs._payloads import encode, plain_field
from toril.jobs.attributes import JobAttributes
from toril.jobs.calls import BlockingJobCalls, JobCalls
from toril.jobs.stored_values import checkpoint_to_json, log_line, progress_to_json, returned
from toril.jobs.type_variables import R, T
from toril.protocol.codec import PayloadCodec, from_json, to_json
from toril.protocol.codecs import QueueCodecs
from toril.protocol.duration import Duration, datetime_to_ms, to_ms, to_seconds
from toril.protocol.keys import QueueKeys
from toril.protocol.options import JobOptions, ParentRef
from toril.protocol.record import JobRecord
from toril.protocol.state import JobState

FinalState = Literal["failed", "completed"]


class JobBase(JobAttributes, Generic[T, R]):
    """The attributes of a job, and its operations as generators. `T` is its data, `R` its result."""

    __slots__ = (
        "_calls",
        "_data",
        "_data_is_decoded",
        "_existed",
        "_result_codec",
        "cancelled",
        "lock_lost",
        "record",
        "token",
        "waits_for_children",
    )

    record: JobRecord
    token: str | None  # the token of the worker's lock; None outside of a handler
    lock_lost: bool  # set by the worker: the lock was lost, and the outcome will be refused
    cancelled: bool  # set by the worker: cancelling was requested
    waits_for_children: bool  # the handler has moved the job to waiting-children
    _data: T
    _data_is_decoded: bool  # set by the worker: the record holds the data as it was before the codecs
    _existed: bool
    _result_codec: PayloadCodec[R]  # set if the type of the result is known

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: object) -> Any:
            """`Job[Data]` is `Job[Data, Any]`: type variables have no defaults before Python 3.13."""
            given = parameters if isinstance(parameters, tuple) else (parameters,)
            return super().__class_getitem__((*given, Any) if len(given) == 1 else given)

    def __init__(
        self,
        record: JobRecord,
        calls: JobCalls | BlockingJobCalls,
        token: str | None = None,
        *,
        added: bool = True,
    ) -> None:
        self.record = record
        self._calls = calls
        self.token = token
        self.lock_lost = False
        self.cancelled = False
        if not added:
            self._existed = True
        self.waits_for_children = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.id} of {self.queue_name!r}>"

    # --- attributes -----------------------------------------------------------------------------------------

    @property
    def queue_name(self) -> str:
        return self._calls.keys.name

    @property
    def added(self) -> bool:
        """False when `add` found this job in the queue: a job of the same `job_id` or deduplication id existed.

        Its attributes are then those of the stored job, or what was given to `add` if that job was removed meanwhile.
        """
        return not getattr(self, "_existed", False)

    @property
    def data(self) -> T:
        """The payload; an instance of the queue's payload model, if it has one."""
        try:
            return self._data
        except AttributeError:
            self._data = data = self._decoded()
            return data

    def _decoded(self) -> T:
        payload = self._calls.payload
        if payload is None:
            return cast("T", self.record.data)
        codec: PayloadCodec[T] = payload
        return codec.decode(self.plain_data())

    def plain_data(self) -> bytes:
        """The JSON of the data, as it was before the codecs of the queue. Reading an offloaded payload blocks."""
        codecs, raw = self._calls.codecs, self.record.raw_data
        if codecs is None or getattr(self, "_data_is_decoded", False):
            return raw
        return codecs.decode(self.name, raw, "data")

    def set_decoded_data(self, raw: bytes) -> None:
        """Gives this object its data as it was before the codecs; what is stored does not change."""
        self.set_local_field("data", raw)
        self._data_is_decoded = True

    @property
    def data_is_decoded(self) -> bool:
        """Whether the record of this object holds the data as it was before the codecs."""
        return getattr(self, "_data_is_decoded", False)

    def _stored_data_changed(self) -> None:
        self._data_is_decoded = False
        if hasattr(self, "_data"):
            del self._data

    @property
    def progress(self) -> Any:
        """A number from 0 to 100, or whatever the handler reported."""
        raw = plain_field(self._calls, self.record, b"progress", "progress")
        return self.record.progress if raw is None else from_json(raw, field="progress")

    @property
    def returnvalue(self) -> Any:
        """What the handler returned. Until the job has completed, its checkpoint; None if it has none."""
        raw = plain_field(self._calls, self.record, b"returnvalue", "result")
        return self.record.returnvalue if raw is None else from_json(raw, field="returnvalue")

    @property
    def checkpoint(self) -> Any:
        """What an earlier attempt saved last, or yielded last; None if it saved nothing. A retry continues there."""
        return self.returnvalue

    @property
    def codecs(self) -> QueueCodecs | None:
        """The codecs of its queue."""
        return self._calls.codecs

    @property
    def keys(self) -> QueueKeys:
        """The keys of its queue."""
        return self._calls.keys

    @property
    def key(self) -> str:
        """The key of its hash; a parent refers to it by this key."""
        return self._calls.keys.job(self.id)

    def _change(self, **fields: bytes | None) -> None:
        """Changes fields of the record as the server did; None removes a field."""
        self.record = self.record.with_fields(fields)

    def set_local_field(self, name: str, value: bytes) -> None:
        """Replaces a field of this object only; what is stored does not change."""
        self._change(**{name: value})
        if name == "data" and hasattr(self, "_data"):
            del self._data

    # --- control flow of handlers, as in BullMQ -------------------------------------------------------------

    def postpone(self, delay: Duration) -> NoReturn:
        """Ends this attempt and runs the job again after `delay`, without counting an attempt."""
        raise Postpone(to_seconds("delay", delay))

    def move_to_wait(self) -> NoReturn:
        """Ends this attempt and puts the job back at once, without counting an attempt."""
        raise Requeue(f"job {self.id} goes back to the queue")

    # --- operations -----------------------------------------------------------------------------------------

    def _move_to_delayed(self, until: datetime) -> Operation[NoReturn]:
        due_ms = datetime_to_ms("until", until)
        now_ms = yield NOW_MS
        raise Postpone(max(0, due_ms - now_ms) / 1000)

    def _move_to_waiting_children(self, child: JobBase | ParentRef | None) -> Operation[bool]:
        if self.token is None:
            raise LockLost(self.id, hint="only the handler of a job holds its lock")
        key = "" if child is None else child.key
        now_ms = yield NOW_MS
        self.waits_for_children = yield move_to_waiting_children(
            self.keys, self.id, token=self.token, now_ms=now_ms, child_key=key
        )
        return self.waits_for_children

    def _refresh(self) -> Operation[None]:
        flat = yield read.get_job(self.keys, self.id)
        if not flat:
            raise JobNotFound(self.id)
        self.record = JobRecord.from_flat(self.id, flat)
        self._stored_data_changed()

    def _update_data(self, data: T) -> Operation[None]:
        raw = self._calls.payload.encode(data) if self._calls.payload is not None else to_json(data)
        raw = yield from encode(self._calls, self.name, raw, "data")
        yield manage.update_data(self.keys, self.id, raw, self._calls.calls)
        self._change(data=raw)
        self._stored_data_changed()

    def _update_progress(self, progress: object, message: str | None) -> Operation[None]:
        raw = yield from encode(self._calls, self.name, progress_to_json(progress), "progress")
        update = manage.update_progress(self.keys, self.id, raw, self._calls.calls)
        yield update if message is None else (update, self._log_command(message))
        self._change(progress=raw)
        if self._calls.on_progress is not None:
            self._calls.on_progress(self, progress)

    def _save_checkpoint(self, value: object) -> Operation[None]:
        if self.token is None:
            raise LockLost(self.id, hint="only the handler of a job holds its lock")
        raw = yield from encode(self._calls, self.name, checkpoint_to_json(value), "result")
        started = self.record.attempts_started
        yield save_checkpoint(self.keys, self.id, self.token, raw, attempts_started=started)
        self._change(returnvalue=raw)

    def _log(self, line: str) -> Operation[int]:
        count: int = yield self._log_command(line)
        return count

    def _log_command(self, line: str) -> Command[int]:
        keep = self.opts.get("kl")
        text = log_line(line)
        kept = self._calls.keep_logs if keep is None else keep
        return manage.add_log(self.keys, self.id, text, keep=kept, calls=self._calls.calls)

    def _get_logs(self, start: int, end: int) -> Operation[list[str]]:
        lines: list[str] = yield read.get_logs(self.keys, self.id, start=start, end=end)[0]
        return lines

    def _clear_logs(self, keep: int) -> Operation[None]:
        yield manage.clear_logs(self.keys, self.id, keep=keep)

    def _change_delay(self, delay: Duration) -> Operation[None]:
        delay_ms = to_ms(to_seconds("delay", delay))
        now_ms = yield NOW_MS
        yield manage.change_delay(self.keys, self.id, delay_ms=delay_ms, now_ms=now_ms)
        self._change(delay=b"%d" % delay_ms)

    def _change_priority(self, priority: int, lifo: bool) -> Operation[None]:
        JobOptions(priority=priority)  # raises if it is out of range
        yield manage.change_priority(self.keys, self.id, priority=priority, lifo=lifo)
        self._change(priority=b"%d" % priority)

    def _promote(self) -> Operation[None]:
        yield manage.promote(self.keys, self.id)
        self._change(delay=b"0")

    def _retry(self, state: FinalState, reset: manage.ResetAttempts) -> Operation[None]:
        if state not in ("failed", "completed"):
            raise InvalidOption("state", f"is {state!r}", 'a finished job is "failed" or "completed"')
        lifo = bool(self.opts.get("lifo"))
        yield manage.reprocess(self.keys, self.id, state=state, lifo=lifo, reset=reset)
        self._change(failedReason=None, finishedOn=None, processedOn=None)
        if state == "completed":  # what a failed job has is its checkpoint
            self._change(returnvalue=None)
        if reset.made:
            self._change(atm=None, attemptsMade=None)
        if reset.started:
            self._change(ats=None)

    def _remove(self, children: bool) -> Operation[None]:
        yield manage.remove(self.keys, self.id, children=children)

    def _get_state(self) -> Operation[JobState]:
        name = yield read.get_state(self.keys, self.id)
        return JobState.parse(name)

    def _is_in(self, *states: JobState) -> Operation[bool]:
        state = yield from self._get_state()
        return state in states

    def _extend_lock(self, duration: Duration) -> Operation[None]:
        if self.token is None:
            raise LockLost(self.id, hint="only the handler of a job holds its lock")
        lock_ms = to_ms(to_seconds("duration", duration, positive=True))
        if not (yield extend_lock(self.keys, self.id, self.token, lock_ms=lock_ms)):
            self.lock_lost = True
            raise LockLost(self.id, command="extendLock")

    def _remove_child_dependency(self) -> Operation[bool]:
        parent_key = self.record.parent_key
        if parent_key is None:
            return False
        removed: bool = yield manage.remove_child_dependency(self.keys, self.id, parent_key)
        if removed:
            self._change(parent=None, parentKey=None)
        return removed

    def _remove_unprocessed_children(self) -> Operation[None]:
        yield manage.remove_unprocessed_children(self.keys, self.id)

    # --- result ---------------------------------------------------------------------------------------------

    @property
    def result_codec(self) -> PayloadCodec[R] | None:
        """The type of the result, if it is known."""
        return getattr(self, "_result_codec", None)

    def set_result_codec(self, codec: PayloadCodec[R]) -> None:
        """Sets the type of the result, as which `result` returns it."""
        self._result_codec = codec

    def _typed_result(self, raw: bytes | None) -> R:
        codec = self.result_codec
        return cast("R", returned(raw)) if codec is None else codec.decode(raw or b"null")
