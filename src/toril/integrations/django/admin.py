"""The entry "Queues" of the admin, which leads to the address in the setting `TORIL_DASHBOARD_URL`."""

from __future__ import annotations

from toril.integrations.django.models import QueueLink
from toril.protocol.extras import needed

with needed("django"):
    from django.conf import settings
    from django.contrib import admin
    from django.core.exceptions import PermissionDenied
    from django.http import HttpRequest, HttpResponseRedirect


class QueueLinkAdmin(admin.ModelAdmin):
    """Leads to the dashboard; nothing can be added or changed here."""

    def changelist_view(self, request: HttpRequest, extra_context: object = None) -> HttpResponseRedirect:
        """Called by Django for the entry."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(settings.TORIL_DASHBOARD_URL)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """There is nothing to add."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """There is nothing to change."""
        return False


if getattr(settings, "TORIL_DASHBOARD_URL", None):
    admin.site.register(QueueLink, QueueLinkAdmin)
