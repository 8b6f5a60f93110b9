"""Random histories of a queue, run on two sides at once (Hypothesis' stateful testing).

Each rule is one operation. Most are aimed at jobs in a fitting state, some at any job or at none, because refusals must
be alike too. What goes wrong is shrunk to the shortest way there.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.interop.lockstep import Lockstep
from tests.interop.operating_rules import OperatingRules
from tests.interop.random_history import RandomHistory
from tests.interop.working_rules import WorkingRules


class QueueHistory(WorkingRules, OperatingRules):
    """All rules together."""


def run_random_histories(
    lockstep: Lockstep,
    *,
    sequences: int,
    steps: int,
    fixed: bool = False,
    shrink: bool = True,
    history: type[RandomHistory] = QueueHistory,
) -> None:
    """Runs random histories on both sides; raises `Differs` with the shortest way to a difference."""
    machine = type("History", (history,), {"lockstep": lockstep})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=fixed,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
