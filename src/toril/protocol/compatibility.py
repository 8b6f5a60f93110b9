"""Which BullMQ toril is compatible with, and the default prefixes of queues."""

from __future__ import annotations

from typing import Final

BULLMQ_VERSION: Final = "5.62.0"
# The field `version` of a queue's meta hash, as Node writes it.
META_VERSION: Final = f"bullmq:{BULLMQ_VERSION}"

BULLMQ_PREFIX: Final = "bull"
# The default prefix of list and stream queues.
ENVELOPE_PREFIX: Final = "msaas"
