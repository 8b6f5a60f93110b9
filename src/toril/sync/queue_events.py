"""`QueueEvents` for code without an event loop: iteration that blocks, callbacks in threads."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal, overload

from toril.errors import Closed
from toril.events import Gap
from toril.events import QueueEvents as AsyncQueueEvents
from toril.events.queue_events import Callback, EventIterator, OfAll, OfEvent, OfGap
from toril.protocol.codecs import GivenCodecs
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.event import Event
from toril.protocol.keys import QueueKeys
from toril.protocol.option_names import knows_its_options
from toril.sync._facade import Facade
from toril.sync.worker import in_thread
from toril.transport import ConnectionPolicy


@knows_its_options("an argument of QueueEvents")
class QueueEvents(Facade[AsyncQueueEvents]):
    """Events of one queue, by iteration or by callbacks.

    with sync.QueueEvents("emails") as events:
        for event in events: ...
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
        super().__init__(
            functools.partial(
                AsyncQueueEvents,
                name,
                prefix=prefix,
                hash_tag=hash_tag,
                last_id=last_id,
                policy=policy,
                derive_retries=derive_retries,
                codecs=codecs,
            ),
            redis,
        )
        self._threaded: dict[tuple[str, Callback], Callback] = {}

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def keys(self) -> QueueKeys:
        return self._inner.keys

    @property
    def last_id(self) -> str:
        """The last event that callbacks have seen; without callbacks, where iterations begin."""
        return self._inner.last_id

    def open(self) -> None:
        """Connects and fixes the position after which events are read. Entering does it, too."""
        self._call(self._inner.open)

    async def _begin(self) -> None:
        await self._inner.open()

    async def _end(self) -> None:
        await self._inner.close()

    def __iter__(self) -> Iterator[Event | Gap]:
        return self.follow()

    def follow(self, last_id: str | None = None) -> Iterator[Event | Gap]:
        """Events after an id; without one, after the position at opening."""
        events = self._inner.follow(last_id)
        return self._iterate(events)

    def _iterate(self, events: EventIterator) -> Iterator[Event | Gap]:
        try:
            while True:
                try:
                    event = self._call(events.__anext__)
                except (StopAsyncIteration, Closed):
                    return
                yield event
        finally:
            if not self._closed:
                self._call(events.aclose)

    @overload
    def on(self, event: Literal["gap"], callback: OfGap) -> OfGap: ...
    @overload
    def on(self, event: Literal["*"], callback: OfAll) -> OfAll: ...
    @overload
    def on(self, event: str, callback: OfEvent) -> OfEvent: ...
    def on(self, event: str, callback: Callback) -> Callback:
        """Calls back on each event of a type, in a thread: `completed`, … `retry`, `gap`, or `*` for all."""
        threaded = in_thread(callback)

        async def listen() -> None:
            self._inner.on(event, threaded)

        self._call(listen)
        self._threaded[event, callback] = threaded
        return callback

    def off(self, event: str, callback: Callback) -> None:
        """Removes a callback."""
        threaded = self._threaded.pop((event, callback), None)
        if threaded is not None:
            self._inner.off(event, threaded)
