"""Counts the unpacked bytes that a page receives, with all its frames and workers.

Guarantee: nothing that the proxy forwards reaches a frame or a running worker before what it unpacks is counted. A
frame of another site waits for this; a worker does not, so the proxy forwards nothing while one is being attached. The
script of a worker itself may be loaded before it is attached: the memory of the browser limits its size.

Chromium reports the bytes of the page and of frames in its process to one session of its debugging protocol. Frames of
other sites and workers have sessions of their own, inside that of their parent: the messages of a session are texts
in the messages of its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from playwright.async_api import CDPSession
from playwright.async_api import Error as PlaywrightError

from toril.browser._proxy import AddressProxy

Message = dict[str, Any]
Send = Callable[[str, Message], Awaitable[object]]

_EVENTS: Final = (
    "Network.dataReceived",
    "Network.webSocketFrameReceived",
    "Target.attachedToTarget",
    "Target.detachedFromTarget",
    "Target.receivedMessageFromTarget",
)
_TEXT_FRAME: Final = 1  # of a WebSocket; others are reported as Base64
# A worker that computes without a pause answers later. It receives nothing meanwhile, so nothing is missed.
_ATTACH_SECONDS: Final = 2.0


class LimitsUnpackedBytes(Protocol):
    """The visit of a page."""

    def check_unpacked(self, total: int) -> None:
        """Called whenever more bytes were unpacked."""


class UnpackedBytes:
    """The bytes that all parts of a page unpacked so far."""

    def __init__(self, proxy: AddressProxy, visit: LimitsUnpackedBytes) -> None:
        self.total = 0
        self._proxy = proxy
        self._visit = visit
        self._attaching: set[asyncio.Task[None]] = set()

    async def start(self, session: CDPSession) -> None:
        """Counts from now on; `session` is one of the page."""
        page = _Session(session.send, self)
        for event in _EVENTS:
            session.on(event, lambda params, event=event: page.on_event(event, params))
        await page.start()

    async def stop(self) -> None:
        attaching = list(self._attaching)
        for task in attaching:
            task.cancel()
        await asyncio.gather(*attaching, return_exceptions=True)

    def add(self, size: int) -> None:
        self.total += size
        self._visit.check_unpacked(self.total)

    def attach(self, session: _Session) -> None:
        """Starts counting for a frame or a worker that is about to run."""
        self._proxy.hold()
        starting = self._begin(session.start(), "toril-browser-count")
        self._begin(self._resume(session, starting), "toril-browser-resume")

    def _begin(self, step: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(step, name=name)
        self._attaching.add(task)
        task.add_done_callback(self._attaching.discard)
        return task

    async def _resume(self, session: _Session, starting: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait([starting], timeout=_ATTACH_SECONDS)
        finally:
            self._proxy.release()
        with contextlib.suppress(PlaywrightError):  # it may have ended
            await starting
            await session.send("Runtime.runIfWaitingForDebugger", {})


class _Session:
    """The page, a frame or a worker, as the debugging protocol shows it."""

    def __init__(self, send: Send, counter: UnpackedBytes) -> None:
        self.send = send
        self._counter = counter
        self._parts: dict[str, _Session] = {}  # by the id of their session
        self._replies: dict[int, asyncio.Future[None]] = {}
        self._sent = 0

    async def start(self) -> None:
        # Without `flatten`: Playwright has no way to send to the sessions that would be made.
        attach = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": False}
        # At once, not one after the other: what runs already must not run for longer than one message takes.
        await asyncio.gather(self.send("Network.enable", {}), self.send("Target.setAutoAttach", attach))

    def on_event(self, event: str, params: Message) -> None:
        match event:
            case "Network.dataReceived":
                self._counter.add(int(params.get("dataLength", 0)))
            case "Network.webSocketFrameReceived":
                self._counter.add(_frame_size(params.get("response", {})))
            case "Target.attachedToTarget":
                self._add_part(params["sessionId"])
            case "Target.detachedFromTarget":
                self._parts.pop(params["sessionId"], None)
            case "Target.receivedMessageFromTarget":
                if part := self._parts.get(params["sessionId"]):
                    part.on_message(json.loads(params["message"]))

    def on_message(self, message: Message) -> None:
        """Takes an event of this session, or the reply to what was sent to it; an error is a reply, too."""
        if "method" in message:
            self.on_event(message["method"], message.get("params", {}))
        elif (waiting := self._replies.pop(message.get("id", 0), None)) and not waiting.done():
            waiting.set_result(None)

    def _add_part(self, session_id: str) -> None:
        async def send(method: str, params: Message) -> None:
            part._sent += 1
            reply = part._replies[part._sent] = asyncio.get_running_loop().create_future()
            text = json.dumps({"id": part._sent, "method": method, "params": params})
            await self.send("Target.sendMessageToTarget", {"sessionId": session_id, "message": text})
            await reply

        part = self._parts[session_id] = _Session(send, self._counter)
        self._counter.attach(part)


def _frame_size(frame: Message) -> int:
    size = len(frame.get("payloadData", ""))
    return size if frame.get("opcode") == _TEXT_FRAME else size * 3 // 4
