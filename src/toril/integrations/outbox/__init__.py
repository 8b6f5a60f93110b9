"""The outbox: jobs are written to a table in a transaction of the application, and a relay adds them to their queues.

    rows.py         a call as a row
    relay.py        the relay: reads rows, adds jobs, marks rows as sent
    sqlalchemy.py   the tables and the store for SQLAlchemy; that for Django is `toril.integrations.django.outbox`

Guarantee: each committed row becomes one job, however often the relay, the database or Redis die; a row that is rolled
back becomes none. Handlers run at least once, as always.
"""

from __future__ import annotations

from toril.integrations.outbox.relay import OutboxRelay, RelayOptions, declare_relay_task
from toril.integrations.outbox.rows import OutboxRow, row_of

__all__ = ["OutboxRelay", "OutboxRow", "RelayOptions", "declare_relay_task", "row_of"]
