"""The Django shop: its one command, its own tests, and the task backend, each in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integrations.web_server import REPOSITORY, web_server
from tests.servers import Postgres, Server
from tests.waiting import wait_until

SHOP = REPOSITORY / "examples" / "django_shop"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture
def env(start_valkey: Callable[..., Server], tmp_path: Path) -> dict[str, str]:
    return {"TORIL_REDIS_URL": start_valkey().url, "SHOP_DATABASE": str(tmp_path / "shop.sqlite3")}


def on(database: str, request: pytest.FixtureRequest) -> dict[str, str]:
    if database == "sqlite":
        return {}
    server: Postgres = request.getfixturevalue("postgres")
    return {"SHOP_POSTGRES": f"127.0.0.1:{server.port}/postgres"}


def run(*command: str, env: dict[str, str]) -> str:
    merged = {**os.environ, **env, "PYTHONPATH": f"{SHOP}:{REPOSITORY}"}
    done = subprocess.run(
        [sys.executable, *command], cwd=SHOP, env=merged, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.timeout(120)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_the_task_backend_and_the_outbox_do_what_django_expects(
    database: str, env: dict[str, str], request: pytest.FixtureRequest
) -> None:
    checks = str(REPOSITORY / "tests/integrations/django_checks.py")
    assert "ok" in run(checks, env={**env, **on(database, request)}).splitlines()


@pytest.mark.timeout(120)
def test_the_tests_of_the_shop_pass(env: dict[str, str]) -> None:
    del env["TORIL_REDIS_URL"]  # they start a server of their own
    assert "Ran 4 tests" in run("-B", "manage.py", "test", env=env)


@pytest.mark.timeout(120)
def test_one_command_starts_the_shop_with_its_worker_and_its_relay(
    env: dict[str, str], request: pytest.FixtureRequest
) -> None:
    placed = {**env, **on("postgresql", request)}
    with web_server("manage.py", "start_shop", "{port}", env=placed, cwd=SHOP) as client:
        number = client.post("/orders/", data={"product": "tea", "amount": 3}).json()["number"]

        def shown_when_done() -> dict[str, object] | None:
            shown: dict[str, object] = client.get(f"/orders/{number}/").json()
            return shown if all(shown.get(part) for part in ("receipt", "invoice", "shipped")) else None

        shown = wait_until(
            shown_when_done, "the order has its receipt, its invoice and is shipped", within=30
        )
        assert shown is not None
        assert shown["receipt"] == "Dear customer, 3 × tea"
