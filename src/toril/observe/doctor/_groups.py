"""Groups that hold jobs while no worker lets them go on."""

from __future__ import annotations

from toril.commands import groups
from toril.observe.doctor._finding import Finding, problem
from toril.observe.overview import QueueFigures
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport


async def examine_groups(
    transport: AsyncTransport, keys: QueueKeys, figures: QueueFigures, name: str
) -> list[Finding]:
    """Returns a finding when groups hold jobs, and no worker of toril reports: other workers do not know of them."""
    holding = await transport.run(groups.count_holding(keys))
    if not holding or figures.workers:
        return []
    return [
        problem(
            "neglected",
            f"{holding} groups hold jobs back, and no worker of toril is connected to let them go on",
            "start one: `toril worker`; workers of other libraries know nothing of limits of groups",
            name,
        )
    ]
