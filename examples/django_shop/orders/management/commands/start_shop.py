"""`manage.py start_shop`: the web server, the worker and the relay of the outbox, started together."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator

from django.core.management import call_command
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C; then all of them end."""

    help = "Creates the tables and starts web server, worker and relay."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("address", nargs="?", default="127.0.0.1:8000", help="PORT, or ADDRESS:PORT.")

    def handle(self, *_: object, address: str, **__: object) -> None:
        """Called by Django."""
        signal.signal(signal.SIGTERM, _end)
        call_command("migrate", verbosity=0)
        with started("toril_worker"), started("toril_outbox", "--poll", "0.1"):
            call_command("runserver", address, use_reloader=False)


@contextlib.contextmanager
def started(*command: str) -> Iterator[None]:
    """Another command of the shop, in a process of its own."""
    process = subprocess.Popen([sys.executable, sys.argv[0], *command])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _end(*_: object) -> None:
    raise SystemExit(0)
