"""How the patterns of schedulers are read: by the parser of BullMQ 5 or 6, or by a function of the application.

Guarantee: pure. A result that is no later than the given moment, or no time at all, is refused before it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from toril.errors import InvalidOption
from toril.protocol.cron import Cron, CronGeneration, zone_of
from toril.protocol.json_types import JsonFields

RepeatStrategy: TypeAlias = Callable[[datetime, JsonFields, str], datetime | None]
"""`strategy(moment, repeat, name)` returns when a series is due next after `moment`, or None at its end.

`repeat` has the schedule under BullMQ's names (`pattern`, `tz`, …); `name` is that of the jobs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatRules:
    """How patterns are read. The same rules belong to the queue that sets schedulers and to its workers."""

    cron_generation: CronGeneration = 5  # whose parser reads patterns: that of BullMQ 5 or 6
    repeat_strategy: RepeatStrategy | None = None  # computes the times of patterns in place of cron

    def __post_init__(self) -> None:
        if isinstance(self.cron_generation, bool) or self.cron_generation not in (5, 6):
            raise InvalidOption("cron_generation", f"is {self.cron_generation!r}", "give 5 or 6")
        strategy: object = self.repeat_strategy
        if strategy is not None and (not callable(strategy) or inspect.iscoroutinefunction(strategy)):
            problem, remedy = "is no plain function", "write `def strategy(moment, repeat, name): …`"
            raise InvalidOption("repeat_strategy", problem, remedy)

    def check(self, pattern: str, tz: str | None) -> None:
        """Refuses a pattern that cannot be read. Patterns of a strategy are not checked."""
        if self.repeat_strategy is None:
            Cron.given(pattern, self.cron_generation)
        elif not pattern:
            raise InvalidOption("cron", "is empty", "give the pattern that your repeat_strategy reads")
        zone_of(tz)

    def next_after(self, moment: datetime, repeat: JsonFields, *, series: str, name: str) -> datetime | None:
        """When a pattern is due next; None when never. `series` is the id of the scheduler: it seeds `H`."""
        if self.repeat_strategy is not None:
            return _checked(self.repeat_strategy(moment, repeat, name), moment)
        seed = repeat.get("hashSeed") or series
        cron = Cron.parse(repeat["pattern"], self.cron_generation, seed=str(seed))
        return cron.next_after(moment, zone_of(repeat.get("tz")))


DEFAULT_RULES: Final = RepeatRules()


def _checked(due: object, moment: datetime) -> datetime | None:
    if due is None:
        return None
    if not isinstance(due, datetime) or due.tzinfo is None:
        problem = f"returned {due!r}"
        raise InvalidOption("repeat_strategy", problem, "return a datetime with a time zone, or None")
    if due <= moment:
        raise InvalidOption(
            "repeat_strategy", f"returned {due}, not later than {moment}", "return a later time"
        )
    return due
