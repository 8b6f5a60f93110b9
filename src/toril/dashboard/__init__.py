"""The dashboard: a web page about queues, jobs, failures and workers, and actions on them.

    from toril.dashboard import create_app, ServerOptions

    app = create_app(servers=[ServerOptions(redis="redis://localhost")])   # any ASGI server, or mounted

Guarantee: everything works without JavaScript and loads nothing from outside. Without `allow_writes` nothing is
changed; with it, every act is recorded in the audit before it happens.
"""

from __future__ import annotations

from toril.dashboard.access import Access, Role
from toril.dashboard.options import DashboardOptions, ServerOptions
from toril.protocol.extras import needed

with needed("dashboard"):
    from toril.dashboard.app import create_app

__all__ = ["Access", "DashboardOptions", "Role", "ServerOptions", "create_app"]
