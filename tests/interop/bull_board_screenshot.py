"""`python -m tests.interop.bull_board_screenshot FILE`: bull-board in front of a queue that only toril has written."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from playwright.async_api import ViewportSize, async_playwright

from tests.interop.bull_board_routes import QUEUE, board_on, populated
from tests.interop.reference import Reference
from tests.interop.scenarios import Ground
from tests.servers import Server
from toril.browser.options import find_chromium

SIZE: ViewportSize = {"width": 1280, "height": 900}
# As root, in a container: the page is our own, on loopback, and nothing is to be fetched from elsewhere.
FLAGS = ["--no-sandbox", "--disable-background-networking"]


async def take_picture(ground: Ground, file: Path) -> None:
    async with populated(ground), board_on(ground) as board, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        page = await browser.new_page(viewport=SIZE)
        await page.goto(f"{board.url}/queue/{QUEUE}?status=completed")
        await page.get_by_text("ok-2").first.wait_for()
        await page.screenshot(path=file)
        await browser.close()


def main(file: Path) -> None:
    logging.disable()
    file.parent.mkdir(parents=True, exist_ok=True)
    with Server.valkey() as server, Reference() as bullmq:
        asyncio.run(take_picture(Ground(server, "bull", bullmq), file))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
