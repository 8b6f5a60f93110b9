"""What all jobs of one queue share: a transport, the keys, the model of the payload.

Guarantee: it is immutable and made once for each queue or worker, so that a job holds only its own fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from toril.commands.once import MANY_AT_ONCE, Calls
from toril.events import FinishWaiter
from toril.protocol.codec import PayloadCodec
from toril.protocol.codecs import QueueCodecs
from toril.protocol.keys import QueueKeys

if TYPE_CHECKING:
    from toril.transport import AsyncTransport, BlockingTransport

OnProgress: TypeAlias = Callable[[Any, object], None]  # job, progress
KEEP_LOGS: Final = 1000  # lines; a job's own `keep_logs` comes first


@dataclass(frozen=True, slots=True)
class JobCalls:
    """For jobs in an event loop. The queue or worker that made it closes it."""

    transport: AsyncTransport
    keys: QueueKeys
    payload: PayloadCodec[Any] | None = None
    keep_logs: int = KEEP_LOGS
    on_progress: OnProgress | None = None  # is called with progress that a job has stored
    codecs: QueueCodecs | None = None
    finishes: FinishWaiter = field(init=False)  # connects at the first wait for a job
    calls: Calls = field(init=False)  # of jobs that write logs or progress, data and progress

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", _payload(self.payload, self.codecs))
        object.__setattr__(self, "finishes", FinishWaiter(self.transport, self.keys))
        object.__setattr__(self, "calls", Calls(self.keys, at_once=MANY_AT_ONCE))

    async def close(self) -> None:
        """Ends waits for jobs. It does not close the transport."""
        await self.finishes.close()


@dataclass(frozen=True, slots=True)
class BlockingJobCalls:
    """For jobs in threads and processes."""

    transport: BlockingTransport
    keys: QueueKeys
    payload: PayloadCodec[Any] | None = None
    keep_logs: int = KEEP_LOGS
    on_progress: OnProgress | None = None
    codecs: QueueCodecs | None = None
    calls: Calls = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload", _payload(self.payload, self.codecs))
        object.__setattr__(self, "calls", Calls(self.keys, at_once=MANY_AT_ONCE))


def _payload(payload: PayloadCodec[Any] | None, codecs: QueueCodecs | None) -> PayloadCodec[Any] | None:
    """With codecs there is always a model, of any JSON: so that jobs without codecs and model need one check only."""
    return PayloadCodec() if payload is None and codecs is not None else payload
