"""Checks the Django shop with Django 6, which needs Python 3.12 or newer, in a virtual environment of its own.

    python -m tests.integrations.django_6 --python python3.12
    python -m tests.integrations.django_6 --python python3.12 --django 6.0.0

Runs the checks of the task backend and the outbox on SQLite and PostgreSQL, and the tests of the shop. Needs the
network.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.integrations.web_server import REPOSITORY
from tests.servers import Postgres, Server

SHOP = REPOSITORY / "examples" / "django_shop"
CHECKS = REPOSITORY / "tests" / "integrations" / "django_checks.py"


@contextmanager
def environment(python: str, django: str) -> Iterator[str]:
    """The Python of a new virtual environment with Django and toril."""
    with tempfile.TemporaryDirectory(prefix="toril-django-") as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        made = str(Path(folder) / "bin" / "python")
        packages = [f"django~={django}", "psycopg[binary]", "pytest"]
        install = [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        subprocess.run([*install, "--editable", f"{REPOSITORY}[server]"], check=True)
        yield made


def run(python: str, *command: str, env: Mapping[str, str]) -> None:
    """Runs a program in the folder of the shop."""
    merged = {**os.environ, "PYTHONPATH": f"{SHOP}:{REPOSITORY}", **env}
    subprocess.run([python, "-B", *command], cwd=SHOP, env=merged, check=True, timeout=200)


def check(python: str) -> None:
    """Runs all checks; each starts with an empty server and an empty database."""
    with tempfile.TemporaryDirectory() as folder, Postgres() as postgres:
        sqlite = {"SHOP_DATABASE": f"{folder}/shop.sqlite3"}
        address = {"SHOP_POSTGRES": f"127.0.0.1:{postgres.port}/postgres"}
        for database in (sqlite, address):
            with Server.valkey() as server:
                run(python, str(CHECKS), env={**database, "TORIL_REDIS_URL": server.url})
        run(python, "manage.py", "test", env={"SHOP_DATABASE": f"{folder}/test.sqlite3"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="Python 3.12 or newer")
    parser.add_argument("--django", default="6.0", help="6.0: the newest 6, 6.0.0: the newest 6.0")
    given = parser.parse_args()
    with environment(given.python, given.django) as made:
        run(made, "-c", "import django; print('Django', django.__version__)", env={})
        check(made)
