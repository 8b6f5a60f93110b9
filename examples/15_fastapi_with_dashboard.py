"""A web application that enqueues tasks, shows their results, and has the dashboard at /queues.

    python 15_fastapi_with_dashboard.py                  starts it, asks it once, and ends
    python 15_fastapi_with_dashboard.py --serve          serves http://127.0.0.1:8000 until Ctrl-C

Needs `pip install "toril[fastapi,dashboard,server]"`.
"""

from __future__ import annotations

import asyncio
import socket
import sys

import httpx
import uvicorn
from fastapi import FastAPI

from toril import App
from toril.dashboard import Access, ServerOptions, create_app
from toril.integrations.fastapi import toril_lifespan

app = App(name="thumbnails")


@app.task(queue="thumbnails", attempts=3)
async def resize(name: str, width: int) -> str:
    return f"{name}-{width}.png"


# Who may see it is up to the application: here everybody may look, and nobody may change anything.
dashboard = create_app(
    servers=[ServerOptions()], authorize=lambda request: Access(role="viewer", user="guest")
)
# The worker runs in this process; in production it is a process of its own: `toril worker shop:app`.
web = FastAPI(lifespan=toril_lifespan(app, worker=True, mounted=[dashboard]))
web.mount("/queues", dashboard)


@web.post("/thumbnails/{name}")
async def start(name: str, width: int = 100) -> dict[str, str]:
    job = await resize.enqueue(name, width)
    return {"file": await job.result(timeout=10)}


async def ask_once() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
    serving = asyncio.create_task(server.serve([listening]))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
        print((await client.post("/thumbnails/cat", params={"width": 64})).json())
        page = await client.get("/queues/", follow_redirects=True)
        print(page.status_code, "thumbnails" in page.text)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    if "--serve" in sys.argv:
        uvicorn.run(web)
    else:
        asyncio.run(ask_once())

# prints:
# {'file': 'cat-64.png'}
# 200 True
