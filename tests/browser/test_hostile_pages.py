"""Pages, and browsers, that do not behave: what they reach, what they load, and how soon they are given up."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.site import Site
from tests.browser.test_tasks import extract, job
from tests.waiting import until
from toril import ErrorCategory, categorize_error
from toril.browser import (
    AddressRefused,
    BrowserCrashed,
    BrowserOptions,
    BrowserTasks,
    PageIsDownload,
    PageRefused,
    PageTooLarge,
    PageUnreachable,
)
from toril.browser._pool import processes_of
from toril.errors import PayloadMismatch

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
async def quick() -> AsyncIterator[BrowserTasks]:
    """Tasks that may visit 127.0.0.1, load four megabytes and give up soon."""
    options = BrowserOptions(allow=("127.0.0.1", "localhost"), timeout=15, max_page_bytes=4_000_000)
    async with BrowserTasks(options) as tasks:
        yield tasks


class Trap(asyncio.DatagramProtocol):
    """An address that no page may reach: notes every connection and every packet."""

    def __init__(self) -> None:
        self.caught: list[str] = []
        self.port = 0

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.caught.append("packet")

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.caught.append("connection")
        writer.close()


@pytest.fixture
async def trap() -> AsyncIterator[Trap]:
    trap = Trap()
    async with await asyncio.start_server(trap.connected, "127.0.0.2", 0) as server:
        trap.port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: trap, ("127.0.0.2", trap.port))
        yield trap
        transport.close()


SIDE_DOORS = """<p>…</p><iframe sandbox="allow-scripts" src="data:text/html,<script>fetch('http://TRAP/data')</script>"></iframe>
<link rel="preconnect" href="http://TRAP">
<form id="form" action="http://TRAP/form" method="post" target="_blank"></form>
<script>
new WebSocket("ws://TRAP/socket"); new EventSource("http://TRAP/events");
navigator.sendBeacon("http://TRAP/beacon", "x");
window.open("http://TRAP/window"); document.getElementById("form").submit();
new Worker(URL.createObjectURL(new Blob(['fetch("http://TRAP/worker"); new WebSocket("ws://TRAP/worker")'])));
fetch("http://[::ffff:127.0.0.2]:PORT/mapped", {mode: "no-cors"}).catch(() => 0);
fetch("http://2130706434:PORT/decimal", {mode: "no-cors"}).catch(() => 0);
const call = new RTCPeerConnection({iceServers: [{urls: "stun:TRAP"},
    {urls: "turn:TRAP?transport=tcp", username: "a", credential: "b"},
    {urls: "turn:TRAP?transport=udp", username: "a", credential: "b"}]});
call.createDataChannel("any");
call.createOffer().then(offer => call.setLocalDescription(offer));
call.onicegatheringstatechange = () => {
    if (call.iceGatheringState == "complete") document.body.innerHTML = "<p class='content'>tried all</p>";
};
</script>"""


async def test_a_page_finds_no_side_door_to_a_private_address(
    quick: BrowserTasks, site: Site, trap: Trap
) -> None:
    page = SIDE_DOORS.replace("TRAP", f"127.0.0.2:{trap.port}").replace("PORT", str(trap.port))
    site.pages["/side-doors"] = page
    assert (await extract(quick, site.url("/side-doors")))["text"] == "tried all"
    assert trap.caught == []


@pytest.mark.parametrize(
    "page",
    [
        "<script>location = 'http://127.0.0.2:8080/'</script>",
        "<meta http-equiv='refresh' content='0;url=http://127.0.0.2:8080/'>",
    ],
    ids=["script", "refresh"],
)
async def test_a_page_that_goes_on_to_a_private_address_brings_no_result(
    quick: BrowserTasks, site: Site, page: str
) -> None:
    site.pages["/onwards"] = page
    with pytest.raises(AddressRefused):
        await extract(quick, site.url("/onwards"), ".never")


@pytest.mark.parametrize("target", ["file:///etc/passwd", "data:text/html,<p>x</p>", "chrome://version/"])
async def test_a_redirect_to_another_scheme_is_refused_for_good(
    quick: BrowserTasks, site: Site, target: str
) -> None:
    site.redirects["/away"] = target
    with pytest.raises(AddressRefused):
        await extract(quick, site.url("/away"))


FRAMES = "<p class='content'>x</p>" + "".join(
    f"<iframe src='http://localhost:PORT/big?{n}'></iframe>" for n in range(8)
)
WORKER = """<script>new Worker(URL.createObjectURL(new Blob([`(async () => {
    for (let n = 0; n < 8; n++) await (await fetch("http://127.0.0.1:PORT/big?" + n, {mode: "no-cors"})).text();
})()`])))</script>"""


@pytest.mark.parametrize("page", [FRAMES, WORKER], ids=["frames", "worker"])
async def test_all_bytes_that_a_page_loads_are_counted(quick: BrowserTasks, site: Site, page: str) -> None:
    site.pages["/big"] = f"<!--{'x' * 3_000_000}-->"
    site.pages["/greedy"] = page.replace("PORT", str(site.port))
    with pytest.raises(PageTooLarge):
        await extract(quick, site.url("/greedy"), ".never")


def worker_of(code: str) -> str:
    return f"new Worker(URL.createObjectURL(new Blob([{json.dumps(code)}])));"


FETCH = "fetch('http://127.0.0.1:PORT/bomb').then(response => response.text());"
UNPACKING = {
    "the page": f"<script>{FETCH}</script>",
    "a frame": "<iframe src='/bomb'></iframe>",
    "a frame of another site": "<iframe src='http://localhost:PORT/bomb'></iframe>",
    "a worker": f"<script>{worker_of(FETCH)}</script>",
    "a worker of a worker": f"<script>{worker_of(worker_of(FETCH))}</script>",
    "a worker of a frame of another site": "<iframe src='http://localhost:PORT/worker'></iframe>",
    "many workers": f"<script>for (let n = 0; n < 10; n++) {worker_of(FETCH)}</script>",
    "a socket": "<script>new WebSocket('ws://127.0.0.1:PORT/socket')</script>",
    "a socket of a worker": f"""<script>{worker_of("new WebSocket('ws://127.0.0.1:PORT/socket')")}</script>""",
}


@pytest.mark.parametrize("page", UNPACKING)
async def test_all_bytes_that_a_page_unpacks_are_counted(quick: BrowserTasks, site: Site, page: str) -> None:
    """30 KB are received, and 30 MB are unpacked where 4 MB are allowed."""
    for path, text in (("/greedy", UNPACKING[page]), ("/worker", UNPACKING["a worker"])):
        site.pages[path] = text.replace("PORT", str(site.port))
    with pytest.raises(PageTooLarge):
        await extract(quick, site.url("/greedy"), ".never")


WINDOWS = """<form id="form" target="_blank" action="http://127.0.0.1:PORT/window"></form>
<a id="link" target="_blank" href="http://127.0.0.1:PORT/window">a</a>
<script>
const [here, other] = ["http://127.0.0.1:PORT/window", "http://localhost:PORT/window"];
const opened = [open(here), open(other, "_blank", "noopener"), open()];
document.getElementById("form").submit();
document.getElementById("link").click();
try { new SharedWorker("/window"); } catch { opened.push("no shared worker"); }
onload = () => document.body.innerHTML = `<p class="content">${opened}</p>`;
</script>"""


async def test_a_page_opens_no_windows_and_no_shared_workers(quick: BrowserTasks, site: Site) -> None:
    """What they load would not be reported to the page."""
    site.pages["/window"] = "<p>open</p>"
    site.pages["/opener"] = WINDOWS.replace("PORT", str(site.port))
    assert (await extract(quick, site.url("/opener")))["text"] == ",,,no shared worker"
    assert "/window" not in site.visits


async def test_a_page_with_frames_and_workers_within_its_limits_is_whole(
    quick: BrowserTasks, site: Site
) -> None:
    """Each part is held until its bytes are counted, and goes on then."""
    tell = "fetch('http://127.0.0.1:PORT/late').then(() => postMessage(1))"
    site.pages["/parts"] = f"""{"<iframe src='http://localhost:PORT/'></iframe>" * 5}<script>
        let said = 0;
        onload = () => {{ for (let n = 0; n < 5; n++) {worker_of(tell).rstrip(";")}.onmessage = () => {{
            if (++said == 5) document.body.innerHTML = "<p class='content'>all workers said so</p>";
        }} }};
    </script>""".replace("PORT", str(site.port))
    assert (await extract(quick, site.url("/parts")))["text"] == "all workers said so"
    assert (site.visits.count("/"), site.visits.count("/late")) == (5, 5)


async def test_a_browser_that_does_not_answer_is_killed_and_replaced(site: Site) -> None:
    async with BrowserTasks(BrowserOptions(allow=("127.0.0.1",), timeout=10)) as tasks:
        await extract(tasks, site.url())
        assert tasks.pool._current is not None
        frozen = await processes_of(tasks.pool._current.browser)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        with pytest.raises(BrowserCrashed, match="does not answer"):
            await extract(tasks, site.url())
        assert (await extract(tasks, site.url()))["text"] == "Grüezi mitenand"
        assert not Path(f"/proc/{frozen[0]}").exists()


async def test_a_frozen_browser_does_not_hold_up_the_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toril.browser._pool.ANSWER_SECONDS", 1.0)
    async with BrowserTasks(BrowserOptions(allow=("127.0.0.1",))) as tasks:
        await extract(tasks, site.url())
        assert tasks.pool._current is not None
        frozen = await processes_of(tasks.pool._current.browser)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        async with asyncio.timeout(20):
            await tasks.close()
        await until(lambda: not Path(f"/proc/{frozen[0]}").exists(), "the frozen browser has ended")


async def test_a_driver_that_is_killed_is_replaced_with_its_browser(site: Site) -> None:
    async with BrowserTasks(BrowserOptions(allow=("127.0.0.1",))) as tasks:
        before = _children()
        await extract(tasks, site.url())
        (driver,) = _children() - before
        os.kill(driver, signal.SIGKILL)
        with pytest.raises((BrowserCrashed, PageUnreachable)) as crash:
            await extract(tasks, site.url())
        assert categorize_error(crash.value) is ErrorCategory.TRANSIENT
        assert (await extract(tasks, site.url()))["text"] == "Grüezi mitenand"


def _children() -> set[int]:
    """Processes of ours that still run."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(folder.name))
    return found


async def test_a_file_to_be_saved_and_a_closed_door_are_refused_for_good(
    quick: BrowserTasks, site: Site
) -> None:
    with pytest.raises(PageIsDownload):
        await extract(quick, site.url("/download"))
    with pytest.raises(PageRefused, match="401"):
        await extract(quick, site.url("/locked"))


@pytest.mark.parametrize("selector", ["((", "", "xpath=///", "js=1", "p["])
async def test_a_selector_that_cannot_be_read_is_a_validation_error(
    quick: BrowserTasks, site: Site, selector: str
) -> None:
    with pytest.raises(PayloadMismatch, match="selector"):
        await extract(quick, site.url(), selector)


@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.example"])
async def test_a_host_that_cannot_be_a_name_is_unreachable(host: str) -> None:
    async with BrowserTasks() as tasks:
        with pytest.raises(PageUnreachable, match="NAME_NOT_RESOLVED"):
            await tasks["pdf"](job("pdf", url=f"http://{host}/"))


MEMORY_OF_A_WORKER = """<script>new Worker(URL.createObjectURL(new Blob([`
    const kept = []; setInterval(() => kept.push(new Uint8Array(40_000_000).fill(1)), 5);
`])))</script>"""
MEMORY_OF_A_FRAME = """<iframe srcdoc="<script>const kept = [];
    setInterval(() => kept.push(new Uint8Array(40_000_000).fill(1)), 5)</script>"></iframe>"""


@pytest.mark.parametrize("page", [MEMORY_OF_A_WORKER, MEMORY_OF_A_FRAME], ids=["worker", "frame"])
async def test_a_browser_that_uses_too_much_memory_is_killed_while_its_page_is_open(
    site: Site, page: str
) -> None:
    site.pages["/hoard"] = page
    options = BrowserOptions(allow=("127.0.0.1",), timeout=60, max_open_memory=800 * 1024 * 1024)
    async with BrowserTasks(options) as tasks:
        with pytest.raises(BrowserCrashed):
            await extract(tasks, site.url("/hoard"), ".never")
        assert (await extract(tasks, site.url()))["status"] == 200
    assert tasks.pool.launched == 2
