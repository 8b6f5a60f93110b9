"""Modes of an app for tests: `with app.testing("capture") as captured: …` and `with app.testing("inline"): …`.

Guarantee: inside of the block nothing is sent to a server. The calls are recorded in both modes; in the capture mode
none of them runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

from toril.app._call_sender import AnyJob, CallSender
from toril.app._inline import InlineCallSender
from toril.app.call import TaskCall
from toril.app.composition import CallNode
from toril.app.task import Task
from toril.errors import InvalidOption
from toril.jobs import DetachedJob, DetachedState
from toril.jobs.detached import detached_record
from toril.protocol.codec import from_json, to_json
from toril.protocol.state import JobState

if TYPE_CHECKING:
    from toril.app.app import App

Mode: TypeAlias = Literal["inline", "capture"]

_WHY: Final = "it was captured by a test: it does not run"


class CaptureCallSender:
    """Runs nothing."""

    async def send(self, calls: Sequence[TaskCall]) -> list[AnyJob]:
        return [_captured_job(call) for call in calls]

    async def send_flow(self, root: CallNode) -> list[AnyJob]:
        return [_captured_job(node.call) for node in root.walk()]


def _captured_job(call: TaskCall) -> AnyJob:
    job_id = call.options.job_id or uuid.uuid4().hex
    record = detached_record(call.task.name, call.data, job_id=job_id, options=call.options)
    state = JobState.DELAYED if call.options.delay else JobState.WAITING
    return DetachedJob(record, call.task.queue.name, DetachedState(state=state, why=_WHY))


class Captured:
    """The calls that an app enqueued inside of a block, and the block itself: it is entered by `with` or `async with`.

    With `async with`, the lifespan of the app is entered once, for the whole block. With `with`, each call that runs
    inline has a lifespan of its own.
    """

    def __init__(self, app: App, mode: Mode) -> None:
        if mode not in ("inline", "capture"):
            raise InvalidOption("mode", f"is {mode!r}", 'choose "inline" or "capture"')
        self._app = app
        self._mode: Final = mode
        self._to: CallSender = InlineCallSender(app) if mode == "inline" else CaptureCallSender()
        self._before: CallSender | None = None
        self._lifespan = AsyncExitStack()
        self.calls: list[TaskCall] = []  # in the order in which they were enqueued

    def __repr__(self) -> str:
        return f"<{len(self.calls)} calls, {self._mode}>"

    # --- as a call sender --------------------------------------------------------------------------------------

    async def send(self, calls: Sequence[TaskCall]) -> list[AnyJob]:
        """Records calls."""
        self.calls += calls
        return await self._to.send(calls)

    async def send_flow(self, root: CallNode) -> list[AnyJob]:
        """Records the calls of a flow."""
        self.calls += [node.call for node in root.walk()]
        return await self._to.send_flow(root)

    # --- as a block -----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._before is not None:
            raise InvalidOption("testing", "is entered already", "call app.testing(…) again")
        self._before, self._app.call_sender = self._app.call_sender, self
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self._app.call_sender, self._before = self._before, None

    async def __aenter__(self) -> Self:
        if self._mode == "inline":
            await self._lifespan.enter_async_context(self._app.lifespan_entered())
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()
        await self._lifespan.aclose()

    # --- what was enqueued ----------------------------------------------------------------------------------

    def calls_of(self, task: Task, /, **arguments: Any) -> list[TaskCall]:
        """The calls of a task whose arguments have these values; others may have any."""
        wanted = from_json(to_json(arguments))
        return [one for one in self.calls if one.task.name == task.name and _has_arguments(one, wanted)]

    def assert_enqueued(self, task: Task, /, **arguments: Any) -> TaskCall:
        """Fails unless a call of this task with these arguments was enqueued; returns the newest one."""
        found = self.calls_of(task, **arguments)
        if not found:
            raise AssertionError(_missing(task, arguments, self.calls))
        return found[-1]

    def assert_not_enqueued(self, task: Task, /, **arguments: Any) -> None:
        """Fails if a call of this task with these arguments was enqueued."""
        found = self.calls_of(task, **arguments)
        if found:
            raise AssertionError(f"{len(found)} calls of {task.name!r} were enqueued: {_calls_text(found)}")

    def clear(self) -> None:
        """Forgets the calls up to now."""
        self.calls.clear()


def _has_arguments(call: TaskCall, wanted: dict[str, object]) -> bool:
    arguments = call.arguments
    return all(name in arguments and arguments[name] == value for name, value in wanted.items())


def _missing(task: Task, arguments: dict[str, object], calls: Sequence[TaskCall]) -> str:
    wanted = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    own = [one for one in calls if one.task.name == task.name]
    if own:
        return f"no call {task.name}({wanted}) was enqueued; calls of this task are: {_calls_text(own)}"
    others = _calls_text(calls) or "none"
    return f"no call of {task.name!r} was enqueued; calls are: {others}"


def _calls_text(calls: Iterable[TaskCall]) -> str:
    return "; ".join(
        f"{one.task.name}({', '.join(f'{name}={value!r}' for name, value in one.arguments.items())})"
        for one in calls
    )
