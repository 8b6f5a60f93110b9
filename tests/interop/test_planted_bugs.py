"""The comparison is worth something only if it notices: a planted bug must be found, and its way shrunk."""

from __future__ import annotations

import pytest

from tests.interop.adapters import PlantedBug, Spoil
from tests.interop.application_adapter import ApplicationSide
from tests.interop.command_adapter import CommandSide
from tests.interop.conftest import MakeLockstep
from tests.interop.lockstep import Differs, Lockstep
from tests.interop.machine import run_random_histories
from tests.interop.planted_bugs import BUGS, marker_is_forgotten, priority_off_by_one
from tests.interop.stepwise_worker import StepwiseWorker
from toril.backends.bullmq import BullmqDelivery
from toril.errors import TorilError
from toril.worker._attempt import FinishedAttempt

SEQUENCES = 150
SHORT = 6  # Steps; neither of the two needs a longer way to show.


def spoilt(make_lockstep: MakeLockstep, bug: Spoil) -> Lockstep:
    return make_lockstep(lambda server: PlantedBug(CommandSide(server, batched=True), bug))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(make_lockstep: MakeLockstep, bug: Spoil) -> None:
    with pytest.raises(Differs):
        run_random_histories(
            spoilt(make_lockstep, bug), sequences=SEQUENCES, steps=20, fixed=True, shrink=False
        )


class _LeavesRefusedJobsActive(StepwiseWorker):
    """Takes every refused end for a lost lock, as toril once did."""

    async def open(self) -> None:
        await super().open()
        self.runtime.runner.refused = self._refused  # type: ignore[method-assign]

    def _refused(self, finished: FinishedAttempt[BullmqDelivery], error: TorilError) -> bool:
        self._observer.refused(finished, error)
        return False


class _WithThatWorker(ApplicationSide):
    def _make_worker(self) -> StepwiseWorker:
        return _LeavesRefusedJobsActive(self._url, self._clock, self._rules)


@pytest.mark.timeout(300)
def test_a_worker_that_leaves_a_job_active_whose_end_was_refused_is_found(
    make_lockstep: MakeLockstep,
) -> None:
    lockstep = make_lockstep(_WithThatWorker, same_tokens=False)
    with pytest.raises(Differs):
        run_random_histories(lockstep, sequences=SEQUENCES, steps=20, fixed=True, shrink=False)
    assert lockstep.steps[-1].op == "run_handler"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", [priority_off_by_one, marker_is_forgotten], ids=lambda bug: bug.__name__)
def test_the_way_to_a_bug_is_shrunk(make_lockstep: MakeLockstep, bug: Spoil) -> None:
    lockstep = spoilt(make_lockstep, bug)
    with pytest.raises(Differs):
        run_random_histories(lockstep, sequences=SEQUENCES, steps=20, fixed=True)
    assert len(lockstep.steps) <= SHORT, lockstep.steps
