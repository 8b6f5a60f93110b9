"""`toril worker` on list queues: tasks of an app by name, and never by a name in a message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import Server
from toril import ListQueue

TASKS = """
from pathlib import Path
from toril import App

app = App()

@app.task(queue="list:jobs.generic")
def write(file: str, text: str) -> int:
    Path(file).write_text(text)
    return len(text)

@app.task(queue="list:jobs.generic", name="numbers.sum")
async def add_up(numbers: list[int]) -> int:
    return sum(numbers)

def not_registered(file: str) -> None:
    Path(file).write_text("this must not be run")

def handle(job):
    return None
"""


def toril(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toril.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "tasks.py").write_text(TASKS)
    (tmp_path / "app" / "two.py").write_text("from toril import App\na, b = App(), App()\n")
    return tmp_path


async def test_functions_run_by_their_task_type_and_only_if_registered(
    valkey: Server, prefix: str, app: Path
) -> None:
    async with ListQueue("jobs.generic", redis=valkey.url, prefix=prefix) as queue:
        written = await queue.add("write", {"file": str(app / "written"), "text": "grüezi"})
        summed = await queue.add("numbers.sum", {"numbers": [1, 2, 3]})
        for name in ("not_registered", "app.tasks:not_registered", "os.system", "shutil.rmtree"):
            await queue.add(name, {"file": str(app / "wrong")})
        place = ["--redis", valkey.url, "--prefix", prefix, "--until-idle", "--keep-results", "60"]
        place += ["--unknown-names", "fail"]
        run = toril("worker", "app.tasks", "--queue", "list:jobs.generic", *place, folder=app)
        assert run.returncode == 0, run.stderr
        assert (app / "written").read_text() == "grüezi"
        assert not (app / "wrong").exists()
        assert await queue.result(written.job_id) == 6
        assert await queue.result(summed.job_id) == 6
        assert {letter.dlq_reason async for letter in queue.dead_letters()} == {"permanent_error"}
        assert (await queue.counts()).dead == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("app.missing", "--queue", "list:q"), "cannot be imported"),
        (("app.two", "--queue", "list:q"), "2 apps"),
        (("json", "--queue", "list:q"), "no apps"),
        (("--queue", "list:q"), "handler: is missing"),
        (("app.tasks", "--browser", "--queue", "stream:q"), "handler: is given together with --browser"),
        (("--browser", "--queue", "emails"), "--browser: is not for emails"),
        (
            ("app.tasks:handle", "--reliable", "--queue", "stream:q"),
            "--reliable: is not for stream:q; leave it out, or write --queue list:NAME",
        ),
        (
            ("app.tasks:handle", "--keep-results", "5", "--queue", "emails"),
            "--keep-results: is not for emails",
        ),
        (
            ("app.tasks:handle", "--consumer-group", "g", "--queue", "list:q"),
            "--consumer-group: is not for list:q",
        ),
        (("app.tasks:handle", "--claim-idle", "60", "--queue", "emails"), "--claim-idle: is not for emails"),
        (("app.tasks", "--allow", "10.0.0.1", "--queue", "stream:q"), "--allow: is for the browser tasks"),
        (
            ("app.tasks:handle", "--claim-idle", "1", "--queue", "stream:q"),
            "claim_idle: is below two heartbeats",
        ),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(app: Path, arguments: tuple[str, ...], problem: str) -> None:
    run = toril("worker", *arguments, folder=app)
    assert (run.returncode, run.stdout) == (2, "")
    assert problem in run.stderr
    assert run.stderr.count("\n") == 1
