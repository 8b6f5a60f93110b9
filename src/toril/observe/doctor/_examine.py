"""The whole examination, from the connection to single jobs.

Guarantee: a part that cannot be examined is a finding, and the other parts are examined.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, replace

from toril.commands.library import check_all, upstream
from toril.errors import (
    AccessDenied,
    EmbeddedServerFailed,
    NoSuchDatabase,
    RedisUnavailable,
    ScriptsCorrupt,
    TorilError,
)
from toril.observe.discovery import QueueDiscovery
from toril.observe.doctor._finding import Finding, ok, problem, warning
from toril.observe.doctor._layout import both_layouts, mixed_generations, mixed_layouts
from toril.observe.doctor._repair import Repairs, repair_queue
from toril.observe.doctor._server import examine_server
from toril.observe.doctor._stuck import MOST_KEYS, examine_queue
from toril.observe.doctor.acl import examine_acl
from toril.observe.overview import ServerOverview, read_overview
from toril.protocol.clock import Clock
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.keys import QueueKeys
from toril.transport import AsyncTransport, ConnectionPolicy, parse_address
from toril.transport.discovery import nodes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings, worst first."""

    server: str
    findings: list[Finding]
    queues: int

    @property
    def healthy(self) -> bool:
        """Whether there is no problem and no warning."""
        return not any(one.level in ("problem", "warning") for one in self.findings)

    def problems(self) -> list[Finding]:
        return [one for one in self.findings if one.level in ("problem", "warning")]


class Doctor:
    """Examines a server and the queues on it."""

    def __init__(
        self,
        redis: object = None,
        *,
        queues: Iterable[str] = (),
        prefix: str | None = None,
        env: str = "prod",
        most_keys: int = MOST_KEYS,
        clock: Clock = time,
    ) -> None:
        self._address = parse_address(redis)
        self._names = list(queues)
        self._prefix = prefix
        self._env = env
        self._most_keys = most_keys
        self._clock = clock

    async def examine(self) -> Diagnosis:
        findings = list(self._scripts())
        queues = 0
        # Two attempts: one lost connection is not a problem.
        async with AsyncTransport(self._address, policy=ConnectionPolicy(call_attempts=2)) as transport:
            connection = await self._connection(transport)
            findings.append(connection)
            if connection.level == "ok":
                findings += await self._servers(transport)
                findings += await self._part("rights", examine_acl(transport, self._prefix or BULLMQ_PREFIX))
                more, queues = await self._queues(transport)
                findings += more
        findings.sort(key=lambda one: one.rank)
        return Diagnosis(server=self._address.label, findings=findings, queues=queues)

    async def repair(self) -> list[Repairs]:
        """Repairs all BullMQ queues without removing a job. Returns what was done in each."""
        async with AsyncTransport(self._address, policy=ConnectionPolicy(call_attempts=2)) as transport:
            await transport.connect()
            found = await QueueDiscovery(transport, self._names, prefix=self._prefix, env=self._env).queues()
            done = [
                await repair_queue(transport, one.keys, str(one), self._most_keys)
                for one in found
                if isinstance(one.keys, QueueKeys) and not one.undecodable
            ]
        return [one for one in done if one]

    def _scripts(self) -> Iterable[Finding]:
        try:
            count = len(check_all())
        except ScriptsCorrupt as error:
            yield problem("scripts", str(error), "install toril again: the packaged scripts were changed")
            return
        yield ok("scripts", f"{count} official scripts of {upstream()['package']['name']}, each as released")

    async def _connection(self, transport: AsyncTransport) -> Finding:
        label = self._address.label
        try:
            await transport.connect()
        except AccessDenied as error:
            return problem("connection", f"{label} refuses the login: {error}", "check user and password")
        except NoSuchDatabase as error:
            return problem("connection", f"{label} answers: {error}", "give another database number")
        except (RedisUnavailable, EmbeddedServerFailed, OSError) as error:
            return problem(
                "connection", f"{label} cannot be reached: {error}", "start the server, or check the address"
            )
        return ok("connection", f"{label} answers")

    async def _servers(self, transport: AsyncTransport) -> list[Finding]:
        """Examines each node of a cluster, or the single server."""
        findings: list[Finding] = []
        async for node in nodes_of(transport):
            found = await self._part("server", examine_server(node, self._clock))
            label = "" if node is transport else f"{node.address.label}: "
            findings += (replace(one, message=label + one.message) for one in found)
        return findings

    async def _part(self, name: str, examination: Awaitable[list[Finding]]) -> list[Finding]:
        try:
            return await examination
        except TorilError as error:
            return [
                warning(
                    name,
                    f"could not be examined: {error}",
                    "allow this user what `toril doctor --acl` prints",
                )
            ]

    async def _queues(self, transport: AsyncTransport) -> tuple[list[Finding], int]:
        try:
            found = await QueueDiscovery(transport, self._names, prefix=self._prefix, env=self._env).queues()
            overview = await read_overview(
                transport, both_layouts(found) if not transport.is_cluster else found
            )
        except TorilError as error:
            return [
                warning("queues", f"could not be examined: {error}", "allow this user SCAN and scripts")
            ], 0
        findings = list(mixed_layouts(overview.queues))
        findings += _unreadable(overview)
        findings += _refused_names(overview)
        for figures in overview.queues:
            if figures.queue in found:
                findings += mixed_generations(figures)
                findings += await self._part(
                    str(figures.queue), examine_queue(transport, figures, self._most_keys)
                )
        if not any(one.level in ("problem", "warning") for one in findings):
            findings.append(
                ok("queues", f"{len(found)} {'queue' if len(found) == 1 else 'queues'}, nothing stuck")
            )
        return findings, len(found)


def _refused_names(overview: ServerOverview) -> list[Finding]:
    """Finds queues of other programs that toril counts, and whose jobs it does not accept."""
    return [
        warning(
            "queues",
            f"the name of this queue is refused by toril: {refusal}",
            "find out which program made it; if none needs it, remove its keys",
            figures.label,
        )
        for figures in overview.queues
        if (refusal := figures.queue.refusal()) is not None
    ]


def _unreadable(overview: ServerOverview) -> list[Finding]:
    return [
        problem(
            "queues",
            f"cannot be read: {error}",
            "a key of the queue has another type: remove it, or rename",
            queue,
        )
        for queue, error in overview.errors.items()
    ]
