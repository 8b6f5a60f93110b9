"""Health: what the doctor finds on each server."""

from __future__ import annotations

from typing import Final

from toril.dashboard._view import Page, View
from toril.errors import TorilError
from toril.observe.doctor import Diagnosis

# A page waits so long for the first examination.
MAX_WAIT_SECONDS: Final = 3.0


async def health(view: View) -> Page:
    diagnoses = await view.parts.findings.diagnoses(wait_seconds=MAX_WAIT_SECONDS)
    servers = []
    for name, found in diagnoses.items():
        findings = found.findings if isinstance(found, Diagnosis) else []
        servers.append(
            {
                "name": name,
                "prefix": f"{name}::" if len(diagnoses) > 1 else "",
                "error": str(found) if isinstance(found, TorilError) else "",
                "is_running": found is None,
                "healthy": isinstance(found, Diagnosis) and found.healthy,
                "findings": [one for one in findings if one.queue is None or view.access.sees(one.queue)],
            }
        )
    return Page(template="health", title="Health", place="health", values={"servers": servers})
