"""Live pages: one stream of server-sent events for each open tab, fed by one reader for each distinct page.

Guarantee: tabs that show the same page to people with the same rights share one reader, so that twenty of them cost as
much as one. A reader ends with its last tab. `close` ends all streams at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from toril.errors import TorilError

# A proxy closes a connection on which nothing is sent; a comment keeps it open.
KEEP_ALIVE_SECONDS: Final = 15.0
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
# A slow tab needs the newest part only.
_ENDED: Final = None

Render = Callable[[], Awaitable[str]]


@dataclass(slots=True, eq=False)
class _LiveView:
    """The tabs of one page, and the task that reads for them."""

    task: asyncio.Task[None] | None = None
    latest: str = ""
    tabs: set[asyncio.Queue[str | None]] = field(default_factory=set)

    def publish(self, message: str) -> None:
        if message == self.latest:
            return
        self.latest = message
        for tab in self.tabs:
            _replace(tab, message)


def _replace(tab: asyncio.Queue[str | None], message: str | None) -> None:
    while not tab.empty():
        tab.get_nowait()
    tab.put_nowait(message)


class LiveHub:
    """All streams of a process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._views: dict[Hashable, _LiveView] = {}
        self._closed = False

    @property
    def tabs(self) -> int:
        return sum(len(view.tabs) for view in self._views.values())

    async def messages(self, key: Hashable, render: Render) -> AsyncIterator[str]:
        """Yields the live part of a page whenever it changed, as an event; ends when the hub is closed."""
        if self._closed:
            return
        view = self._views.setdefault(key, _LiveView())
        tab: asyncio.Queue[str | None] = asyncio.Queue()
        view.tabs.add(tab)
        if view.task is None:
            view.task = asyncio.create_task(self._read(view, render), name="toril-live")
        elif view.latest:
            tab.put_nowait(view.latest)
        try:
            yield ": open\n\n"
            while True:
                try:
                    message = await asyncio.wait_for(tab.get(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if message is _ENDED:
                    return
                yield message
        finally:
            view.tabs.discard(tab)
            if not view.tabs:
                self._views.pop(key, None)
                await _cancelled(view.task)

    async def _read(self, view: _LiveView, render: Render) -> None:
        while True:
            try:
                view.publish(_event("", await render()))
            except TorilError as error:
                view.latest = ""
                for tab in view.tabs:
                    _replace(tab, _event("away", str(error)))
            await asyncio.sleep(self._seconds)

    async def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for view in self._views.values():
            for tab in view.tabs:
                _replace(tab, _ENDED)


async def _cancelled(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])


def _event(name: str, data: str) -> str:
    """Returns an event: a line for each line of the data."""
    lines = [f"event: {name}"] if name else []
    return "\n".join([*lines, *(f"data: {line}" for line in _LINE_END.split(data))]) + "\n\n"
