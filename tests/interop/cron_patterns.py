"""Random cron patterns, read by toril and by the parser of each generation of BullMQ.

`python -m tests.interop.cron_patterns` compares 2,000 patterns in each time zone; the exit status is 1 if any differs.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.interop.reference import NODE_SIDE
from toril.errors import InvalidOption
from toril.protocol.cron import Cron, CronGeneration, zone_of
from toril.protocol.duration import ms_to_datetime

# Clocks that change by an hour at night or at midnight, in both hemispheres, and those that never change. Left out:
# those that change at a quarter to, by half an hour, or back at midnight (Chatham, Lord Howe, Havana).
ZONES = (
    "UTC",
    "Europe/Zurich",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Sydney",
    "America/Santiago",
    "Africa/Cairo",
    "Asia/Kathmandu",
)
# Days around which clocks change somewhere, a leap day, and an ordinary one.
DAYS = [
    datetime(*day, 20, tzinfo=UTC)
    for day in (
        (2025, 3, 29),
        (2025, 10, 25),
        (2024, 2, 27),
        (2025, 11, 1),
        (2026, 6, 1),
        (2025, 9, 5),
        (2025, 4, 23),
        (2025, 4, 4),
    )
]
TIMES = 5
DAY_MS = 86_400_000

PARSERS: dict[CronGeneration, str] = {
    5: "require('cron-parser').parseExpression",
    6: "require('./node_modules/bullmq6/node_modules/cron-parser').CronExpressionParser.parse",
}
READ = """
const parse = %s;
const answers = JSON.parse(require('fs').readFileSync(0, 'utf8')).map(({ pattern, tz, from, times, seed }) => {
  try {
    const dates = parse(pattern, { currentDate: new Date(from), tz, hashSeed: seed });
    return Array.from({ length: times }, () => dates.next().getTime());
  } catch { return null; }
});
console.log(JSON.stringify(answers));
"""

Case = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """A pattern that is read differently."""

    case: Case
    here: list[int] | None
    there: list[int] | None


def _field(
    chance: random.Random, least: int, most: int, special: tuple[str, ...] = (), hashed: bool = False
) -> str:
    def number() -> int:
        return chance.randint(least, most)

    def span() -> str:
        return "{}-{}".format(*sorted((number(), number())))

    kinds: list[Callable[[], str]] = [
        lambda: "*",
        lambda: "*",
        lambda: str(number()),
        span,
        lambda: f"*/{chance.randint(1, max(2, most // 2))}",
        lambda: ",".join(str(number()) for _ in range(3)),
        lambda: f"{span()}/{chance.randint(1, 5)}",
        lambda: chance.choice(special) if special else f"{number()}/{chance.randint(1, 7)}",
    ]
    if hashed:
        kinds += [
            lambda: "H",
            lambda: f"H/{chance.randint(1, most)}",
            lambda: f"H({span()})",
            lambda: f"H({span()})/{chance.randint(1, 9)}",
        ]
    return chance.choice(kinds)()


def random_cases(
    seed: int, count: int, zones: Sequence[str] = ZONES, *, hashed: bool = False
) -> Iterator[Case]:
    """Patterns, each with a zone and a time from which on it is read."""
    chance = random.Random(seed)
    for place in range(count):
        parts = [
            _field(chance, 0, 59, hashed=hashed),
            _field(chance, 0, 23, hashed=hashed),
            _field(chance, 1, 31, ("L", "?", "15,L"), hashed),
            _field(chance, 1, 12, ("jan", "mar-oct", "2"), hashed),
            _field(chance, 0, 7, ("mon", "5L", "1#2", "mon-fri", "sun,3", "?", "2-7/2"), hashed),
        ]
        if chance.random() < 0.2:
            parts.insert(0, _field(chance, 0, 59, hashed=hashed))
        begin = chance.choice(DAYS) + timedelta(milliseconds=chance.randrange(2 * DAY_MS))
        yield {
            "pattern": " ".join(parts),
            "tz": zones[place % len(zones)],
            "from": round(begin.timestamp() * 1000),
            "times": TIMES,
            "seed": f"scheduler-{place}é",
        }


def read_by_node(cases: Sequence[Case], generation: CronGeneration) -> list[list[int] | None]:
    """When each pattern is due; None for one that is refused."""
    done = subprocess.run(
        [shutil.which("node") or "node", "-e", READ % PARSERS[generation]],
        input=json.dumps(list(cases)),
        capture_output=True,
        text=True,
        cwd=NODE_SIDE,
        check=True,
    )
    answers: list[list[int] | None] = json.loads(done.stdout)
    return answers


def read_by_toril(case: Case, generation: CronGeneration) -> list[int] | None:
    try:
        cron = Cron.parse(case["pattern"], generation, seed=case["seed"])
    except InvalidOption:
        return None
    found: list[int] = []
    moment: datetime | None = ms_to_datetime(case["from"])
    for _ in range(case["times"]):
        assert moment is not None
        moment = cron.next_after(moment, zone_of(case["tz"]))
        if moment is None:
            return None
        found.append(round(moment.timestamp() * 1000))
    return found


def compare(cases: Sequence[Case], generation: CronGeneration) -> tuple[list[Difference], int]:
    """The patterns that are read differently, and how many both understand."""
    there = read_by_node(cases, generation)
    here = [read_by_toril(case, generation) for case in cases]
    rows = zip(cases, here, there, strict=True)
    return [Difference(*row) for row in rows if row[1] != row[2]], sum(one is not None for one in there)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.cron_patterns", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="patterns in each time zone")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    differ = 0
    for generation in PARSERS:
        for hashed in (False, True)[: 2 if generation == 6 else 1]:
            for zone in ZONES:
                cases = list(random_cases(args.seed, args.count, [zone], hashed=hashed))
                found, read = compare(cases, generation)
                differ += len(found)
                title = f"BullMQ {generation}{', with H' if hashed else ''}, {zone}"
                sys.stdout.write(f"{title}: {len(found)} of {len(cases)} differ, {read} are understood\n")
                for one in found[:3]:
                    sys.stdout.write(f"    {one}\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
