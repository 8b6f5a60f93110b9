"""`manage.py toril_outbox`: the relay of the outbox."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import Any

from toril.integrations.django.calls import project_app
from toril.integrations.django.outbox.store import DjangoStore
from toril.integrations.outbox.relay import OutboxRelay, RelayOptions
from toril.protocol.extras import needed

with needed("django"):
    from django.core.management.base import BaseCommand, CommandError

_DEFAULTS = RelayOptions()


class Command(BaseCommand):
    """Runs until SIGTERM or Ctrl-C. Several may run: one of them sends, the others stand by."""

    help = "Adds the jobs of the outbox to their queues."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the options, which are those of RelayOptions."""
        parser.add_argument("--database", default="default", help="The alias of the database.")
        parser.add_argument("--rows", type=int, default=_DEFAULTS.rows, help="Rows in one transaction.")
        parser.add_argument("--poll", type=float, default=_DEFAULTS.poll, help="Seconds between two looks.")
        parser.add_argument("--keep", type=float, default=_DEFAULTS.keep, help="Seconds to keep sent rows.")
        parser.add_argument("--once", action="store_true", help="Send what is there, and end.")

    def handle(self, *_: object, **options: Any) -> None:
        """Called by Django."""
        app = project_app()
        if app is None:
            raise CommandError("set TORIL_APP to the App whose calls are in the outbox")
        chosen = RelayOptions(rows=options["rows"], poll=options["poll"], keep=options["keep"])
        relay = OutboxRelay(app, DjangoStore(options["database"]), chosen)
        try:
            if options["once"]:
                relay.remove_expired()
                self.stdout.write(f"sent {relay.send_all()} rows")
                return
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: relay.stop())
            relay.run()
        finally:
            relay.close()
