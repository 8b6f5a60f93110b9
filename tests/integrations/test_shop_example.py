"""The shop: started by its one command with PostgreSQL, and its own tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integrations.web_server import REPOSITORY, events_of, web_server
from tests.servers import Postgres, Server


@pytest.mark.timeout(120)
def test_the_shop_ships_orders_with_postgresql(start_valkey: Callable[..., Server]) -> None:
    with Postgres() as postgres:
        env = {
            "TORIL_REDIS_URL": start_valkey().url,
            "SHOP_DATABASE_URL": postgres.url,
            "SHOP_PORT": "{port}",
        }
        with web_server("-m", "examples.shop", env=env) as client:
            placed = client.post("/orders", params={"customer": "ada", "product": "tea"}).json()
            refused = client.post("/orders", params={"customer": "ada", "product": "unicorn"})
            assert refused.status_code == 422
            while (answer := client.get(f"/jobs/{placed['job']}/events")).status_code == 404:
                pass  # the relay has not sent the row yet
            assert answer.status_code == 200
            end = events_of(client, f"/jobs/{placed['job']}/events")[-1]
            assert end == ("completed", f"order {placed['order']} is on its way")
            assert client.get(f"/orders/{placed['order']}").json() == {"product": "tea", "state": "shipped"}


@pytest.mark.timeout(120)
def test_the_tests_of_the_shop_pass(tmp_path: Path) -> None:
    settings = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}")
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", str(tmp_path / "pytest.ini"))
    command = [sys.executable, "-B", "-m", "pytest", *options, str(REPOSITORY / "examples" / "shop")]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout
