"""Every documented way to read the tables without Spark, run as programs of their own for their answer and exit code:
`python -m tests.spark.readers [TIMES]`, 30 times each.

The programs are the code blocks of "Reading the tables without Spark" in docs/spark.md. The last line is the call that
the document warns of: deltalake's own file system under pyarrow's threads, which aborts some of the processes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa

from toril.lake import Lake
from toril.spark.pipeline.files.parquet_files import write_file

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "spark.md"
WARNED_OF: Final = """
from deltalake import DeltaTable

print(DeltaTable("lake/silver/attempts").to_pyarrow_table().num_rows)
"""
_TABLE: Final = "silver/attempts"
FILES, ROWS = 12, 2_000  # many files keep pyarrow's threads busy until the end


def programs() -> dict[str, tuple[str, str]]:
    """Name → program and what it prints, as documented."""
    section = DOCUMENT.read_text().split("## Reading the tables without Spark")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n# (.+?)\n(.*?)```\n\n```text\n(.*?)```", section, re.DOTALL)
    return {name: (program, output) for name, program, output in blocks}


def make_lake(folder: Path) -> None:
    """Attempts in many files: three of four completed."""
    lake = Lake(folder)
    log = lake.ensure(_TABLE)
    for number in range(FILES):
        moment = datetime(2026, 3, 1 + number % 3, 12, number, tzinfo=UTC)
        table = pa.Table.from_pylist([_attempt(moment, n) for n in range(ROWS)], schema=log.spec.schema)
        file = write_file(lake, _TABLE, table, {"day": moment.date().isoformat()})
        log.commit([file], application="test", version=number)


def _attempt(moment: datetime, number: int) -> dict[str, object]:
    return {
        "queue": f"queue-{number % 5}",
        "job_id": str(number),
        "attempt": 1,
        "ended_at": moment + timedelta(milliseconds=number),
        "outcome": "failed" if number % 4 == 3 else "completed",
        "run_ms": number % 100,
        "error": f"order {number} not found",
        "day": moment.date(),
    }


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program in a folder that holds the lake."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def main(times: str = "30") -> None:
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_lake(folder / "lake")
        for name, (program, output) in programs().items():
            runs = [run(program, folder) for _ in range(int(times))]
            wrong += sum((one.returncode, one.stdout) != (0, output) for one in runs)
            print(f"{name}: exit codes {dict(Counter(one.returncode for one in runs))}", flush=True)
        codes = Counter(run(WARNED_OF, folder).returncode for _ in range(int(times)))
        print(f"(warned of: to_pyarrow_table() without filesystem: exit codes {dict(codes)})", flush=True)
    assert not wrong, f"{wrong} runs ended with another code or answer"


if __name__ == "__main__":
    main(*sys.argv[1:])
