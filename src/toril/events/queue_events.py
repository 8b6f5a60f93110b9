"""QueueEvents: the events of a queue, by iteration or by callbacks.

Guarantee: from the moment it is entered no event is missed without a `Gap`. Every iteration reads on its own from the
same position; callbacks share one reader. An error in a callback is logged, and the others are called.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, Self, TypeAlias, overload

from toril.errors import Closed, TorilError
from toril.events._stream import EventStream, Gap
from toril.protocol.codecs import GivenCodecs, QueueCodecs
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.event import KNOWN_EVENTS, Event
from toril.protocol.keys import QueueKeys, check_text
from toril.protocol.option_names import knows_its_options
from toril.protocol.option_warnings import warn_option
from toril.transport import AsyncTransport, ConnectionPolicy
from toril.transport.waiting import Closing

logger = logging.getLogger("toril.events")

Callback: TypeAlias = Callable[[Any], Awaitable[Any] | Any]
"""Called with an `Event` (a `Gap` for "gap"); a plain function or a coroutine function."""
OfGap: TypeAlias = Callable[[Gap], Any]
OfAll: TypeAlias = Callable[[Event | Gap], Any]
OfEvent: TypeAlias = Callable[[Event], Any]

_TYPES = frozenset({*KNOWN_EVENTS, "retry", "gap", "*"})


@knows_its_options("an argument of QueueEvents")
class QueueEvents:
    """Events of one queue, by iteration or by callbacks.

    async with QueueEvents("emails") as events:
        events.on("completed", lambda event: print(event.job_id, event.returnvalue))
        async for event in events: ...
    """

    def __init__(
        self,
        name: str,
        *,
        redis: object = None,
        prefix: str = BULLMQ_PREFIX,
        hash_tag: bool | None = None,
        last_id: str = "$",
        policy: ConnectionPolicy | None = None,
        derive_retries: bool = True,
        codecs: GivenCodecs = None,
    ) -> None:
        """`codecs` are those of the queue: they decode `event.progress` and `event.returnvalue`."""
        self._transport = AsyncTransport(redis, policy=policy)
        self.keys = QueueKeys(name, prefix, hash_tag).resolve(cluster=self._transport.is_cluster)
        self._start_at = last_id
        self._derive_retries = derive_retries
        self._codecs = QueueCodecs.of(codecs)
        self._streams: set[EventStream] = set()
        self._callbacks: dict[str, list[Callback]] = {}
        self._calling: asyncio.Task[None] | None = None
        self._called_up_to: EventStream | None = None
        self._closing = Closing(self._shut, f"toril-close-events-{self.name}")
        self._opened = False
        self._closed = False

    @property
    def name(self) -> str:
        return self.keys.name

    @property
    def last_id(self) -> str:
        """The last event that callbacks have seen; without callbacks, where iterations begin."""
        return self._called_up_to.last_id if self._called_up_to is not None else self._start_at

    # --- opening and closing -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects and fixes the position after which events are read. Entering does it, too."""
        if self._closed:
            raise Closed("these queue events were closed; make a new QueueEvents")
        if not self._opened:
            stream = self._stream()
            await stream.open()
            self._start_at, self._opened = stream.last_id, True
        self._start_callbacks()

    async def close(self) -> None:
        """Ends all iterations and closes the connections. May be called twice."""
        self._closed = True
        await self._closing.finish()

    async def _shut(self) -> None:
        try:
            for stream in list(self._streams):
                await stream.close()
            if self._calling is not None:
                await asyncio.wait([self._calling])
        finally:
            await self._transport.close()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException as error:
            await self.__aexit__(None, error, None)
            raise
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._closed = True
        await self._closing.after(error)

    def _stream(self) -> EventStream:
        return self._stream_after(self._start_at)

    # --- iteration ------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[Event | Gap]:
        return self.follow()

    def follow(self, last_id: str | None = None) -> EventIterator:
        """Events after an id; without one, after the position at opening."""
        stream = self._stream() if last_id is None else self._stream_after(last_id)
        return EventIterator(self._streams, stream)

    def _stream_after(self, last_id: str) -> EventStream:
        return EventStream(
            self._transport, self.keys, last_id, derive_retries=self._derive_retries, codecs=self._codecs
        )

    # --- callbacks ------------------------------------------------------------------------------------------

    @overload
    def on(self, event: Literal["gap"], callback: OfGap) -> OfGap: ...
    @overload
    def on(self, event: Literal["*"], callback: OfAll) -> OfAll: ...
    @overload
    def on(self, event: str, callback: OfEvent) -> OfEvent: ...
    def on(self, event: str, callback: Callback) -> Callback:
        """Calls back on each event of a type: `completed`, `failed`, … `retry`, `gap`, or `*` for all.

        Other names are those of custom events, which `publish` of Node's QueueEventsProducer writes.
        """
        _check_type(event)
        self._callbacks.setdefault(event, []).append(callback)
        if self._opened:
            self._start_callbacks()
        return callback

    def off(self, event: str, callback: Callback) -> None:
        """Removes a callback."""
        callbacks = self._callbacks.get(event, [])
        if callback in callbacks:
            callbacks.remove(callback)

    def _start_callbacks(self) -> None:
        if self._callbacks and self._calling is None and not self._closed:
            self._called_up_to = stream = self._stream()
            self._streams.add(stream)
            self._calling = asyncio.create_task(self._call(stream), name=f"toril-events-{self.name}")

    async def _call(self, stream: EventStream) -> None:
        try:
            while not stream.closed:
                for event in await stream.next_batch():
                    for callback in (*self._callbacks.get(event.type, ()), *self._callbacks.get("*", ())):
                        await _call_and_log_error(callback, event)
        except TorilError:
            logger.exception("events of %s cannot be read any more: callbacks will not be called", self.name)


def _check_type(event: object) -> None:
    """Warns of a name that is almost one of BullMQ's: it is probably a typing error."""
    name = check_text("event", event)
    near = difflib.get_close_matches(name, _TYPES, 1, cutoff=0.85)
    if name not in _TYPES and near:
        warn_option(f"event {name!r} is a custom event; did you mean {near[0]!r}?")


async def _call_and_log_error(callback: Callback, event: Event | Gap) -> None:
    try:
        result = callback(event)
        if inspect.isawaitable(result):
            await result
    except Exception:
        logger.exception("a callback for %s events failed", event.type)


class EventIterator:
    """One iteration over a queue's events. Closed with its `QueueEvents`, or before by `aclose`."""

    def __init__(self, open_streams: set[EventStream], stream: EventStream) -> None:
        self._open_streams = open_streams
        self._stream = stream
        self._ready: deque[Event | Gap] = deque()
        open_streams.add(stream)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | Gap:
        while not self._ready:
            if self._stream.closed:
                raise StopAsyncIteration
            self._ready.extend(await self._stream.next_batch())
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Ends this iteration and its connection."""
        self._open_streams.discard(self._stream)
        await self._stream.close()
