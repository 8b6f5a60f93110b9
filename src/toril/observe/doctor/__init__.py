"""The doctor: finds problems of a server and its queues, with a remedy for each.

Guarantee: an examination changes nothing. It reads, tries commands on keys that do not exist, and measures. Every
problem has a remedy. A repair removes no job.
"""

from __future__ import annotations

from toril.observe.doctor._examine import Diagnosis, Doctor
from toril.observe.doctor._finding import Finding, Level
from toril.observe.doctor._repair import Repairs
from toril.observe.doctor.acl import acl_rules

__all__ = ["Diagnosis", "Doctor", "Finding", "Level", "Repairs", "acl_rules"]
