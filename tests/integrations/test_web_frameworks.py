"""The example applications of FastAPI, Litestar and Flask, on their real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.integrations.web_server import events_of, program, web_server
from tests.servers import Server

UVICORN = ("-m", "uvicorn", "--port", "{port}", "--log-level", "warning")
FLASK = ("-m", "flask", "--app", "examples.web.flask_app")
SERVERS: dict[str, tuple[str, ...]] = {
    "fastapi": (*UVICORN, "examples.web.fastapi_app:web"),
    "litestar": (*UVICORN, "examples.web.litestar_app:web"),
    "flask": (*FLASK, "run", "--port", "{port}"),
}


@pytest.fixture(params=list(SERVERS))
def client(request: pytest.FixtureRequest, start_valkey: Callable[..., Server]) -> Iterator[httpx.Client]:
    env = {"TORIL_REDIS_URL": start_valkey().url}
    with ExitStack() as stack:
        if request.param == "flask":  # the others run their worker in the process of the web server
            stack.enter_context(program(*FLASK, "toril-worker", "--concurrency", "5", env=env))
        yield stack.enter_context(web_server(*SERVERS[request.param], env=env))


def job_of(response: httpx.Response) -> str:
    found: dict[str, Any] = response.raise_for_status().json()
    return str(found["job"])


def test_an_example_enqueues_jobs_and_streams_their_progress_and_end(client: httpx.Client) -> None:
    job = job_of(client.post("/thumbnails", params={"name": "cat", "sizes": 4}))
    events = events_of(client, f"/jobs/{job}/events")
    assert events[-1] == ("completed", [f"cat-{size}.png" for size in (1, 2, 3, 4)])
    assert events[-2] == ("progress", 100)
    # Whoever comes late gets the end at once.
    assert events_of(client, f"/jobs/{job}/events") == [("progress", 100), events[-1]]

    failing = job_of(client.post("/failures", params={"reason": "no paper"}))
    assert events_of(client, f"/jobs/{failing}/events") == [("failed", "no paper")]
    assert client.get("/jobs/unknown/events").status_code == 404


@pytest.mark.parametrize("client", ["fastapi", "litestar"], indirect=True)
def test_queues_are_injected(client: httpx.Client) -> None:
    job = job_of(client.post("/thumbnails", params={"name": "cat"}))
    assert events_of(client, f"/jobs/{job}/events")[-1][0] == "completed"
    assert client.get("/counts").json() == {"completed": 1, "failed": 0}


@pytest.mark.parametrize("client", ["flask"], indirect=True)
def test_a_view_of_flask_finds_a_job(client: httpx.Client) -> None:
    job = job_of(client.post("/thumbnails", params={"name": "cat"}))
    assert events_of(client, f"/jobs/{job}/events")[-1][0] == "completed"
    assert client.get(f"/jobs/{job}").json() == {"state": "completed"}
    assert client.get("/jobs/unknown").json() == {"state": None}


@pytest.mark.parametrize("client", ["fastapi"], indirect=True)
def test_the_dashboard_is_mounted(client: httpx.Client) -> None:
    job = job_of(client.post("/thumbnails", params={"name": "cat"}))
    assert events_of(client, f"/jobs/{job}/events")[-1][0] == "completed"
    shown = client.get("/queues/", follow_redirects=True)
    assert shown.status_code == 200
    assert "thumbnails" in shown.text
