"""The Django shop: its views, its worker, and the task backend, each in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integrations.web_server import REPOSITORY, program, web_server
from tests.servers import Server
from tests.waiting import wait_until

SHOP = REPOSITORY / "examples" / "django_shop"


@pytest.fixture
def env(start_valkey: Callable[..., Server], tmp_path: Path) -> dict[str, str]:
    return {"TORIL_REDIS_URL": start_valkey().url, "SHOP_DATABASE": str(tmp_path / "shop.sqlite3")}


def run(*command: str, env: dict[str, str]) -> str:
    merged = {**os.environ, **env, "PYTHONPATH": f"{SHOP}:{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, *command], cwd=SHOP, env=merged, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(120)
def test_the_task_backend_does_what_django_expects(env: dict[str, str]) -> None:
    assert run(str(REPOSITORY / "tests/integrations/django_checks.py"), env=env).splitlines()[-1] == "ok"


@pytest.mark.timeout(120)
def test_the_shop_runs_with_its_web_server_and_its_worker(env: dict[str, str]) -> None:
    run("manage.py", "migrate", "--verbosity", "0", env=env)
    with (
        program("manage.py", "toril_worker", env=env, cwd=SHOP),
        program("manage.py", "toril_outbox", "--poll", "0.05", env=env, cwd=SHOP),
        web_server("manage.py", "runserver", "--noreload", "{port}", env=env, cwd=SHOP) as client,
    ):
        number = client.post("/orders/", data={"product": "tea", "amount": 3}).json()["number"]

        def shown_when_done() -> dict[str, object] | None:
            shown: dict[str, object] = client.get(f"/orders/{number}/").json()
            return shown if all(shown.get(part) for part in ("receipt", "invoice", "shipped")) else None

        shown = wait_until(
            shown_when_done, "the order has its receipt, its invoice and is shipped", within=30
        )
        assert shown is not None
        assert shown["receipt"] == "Dear customer, 3 × tea"
