"""`toril worker` with an app, a worker or a factory; where its options come from; starting again after changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server
from toril import InvalidOption, Queue
from toril.app.settings import options_from_outside
from toril.protocol.queue_name import QueueName
from toril.protocol.worker_options import RateLimit

SHOP = """
import os
from collections.abc import AsyncIterator
from pathlib import Path

from toril import App, Context, Worker, sync

async def lifespan(app: App) -> AsyncIterator[str]:
    with open("lifespan.log", "a") as log:
        log.write("entered\\n")
    yield "resource"
    with open("lifespan.log", "a") as log:
        log.write("left\\n")

app = App(lifespan=lifespan, job_timeout=60)
app.queue("images", concurrency=2)

@app.task(queue="emails")
async def send(ctx: Context, to: str) -> str:
    return f"{ctx.resources} {to}"

@app.task(queue="images")
def resize(n: int) -> int:
    return n * 2

def make_app() -> App:
    return app

blocking = sync.App(app)

async def handle(job) -> str:
    return "handled"

worker = Worker("emails", handle, redis=os.environ.get("WORKER_REDIS"), prefix=os.environ.get("WORKER_PREFIX", "bull"))
number = 5
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def toril(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "toril.cli", "worker", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=50, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("target", ["shop", "shop:app", "shop:make_app", "shop:blocking"])
async def test_an_app_is_run_by_every_name_of_it(
    valkey: Server, prefix: str, shop: Path, target: str
) -> None:
    async with (
        Queue("emails", redis=valkey.url, prefix=prefix) as emails,
        Queue("images", redis=valkey.url, prefix=prefix) as images,
    ):
        sent = await emails.add("send", {"to": "a@b.c"})
        resized = await images.add("resize", {"n": 4})
        place = ("--redis", valkey.url, "--prefix", prefix, "--until-idle")
        if target == "shop":  # blocking and app are one app
            target = "shop:app"
        run = toril(shop, target, *place)
        assert run.returncode == 0, run.stderr
        assert await sent.wait_until_finished(5) == "resource a@b.c"
        assert await resized.wait_until_finished(5) == 8
        assert (shop / "lifespan.log").read_text() == "entered\nleft\n"
        assert "on emails: 1 jobs completed" in run.stdout


async def test_chosen_queues_in_several_processes(valkey: Server, prefix: str, shop: Path) -> None:
    async with Queue("images", redis=valkey.url, prefix=prefix) as images:
        jobs = await images.add_bulk([("resize", {"n": n}) for n in range(20)])
        place = ("--redis", valkey.url, "--prefix", prefix, "--until-idle", "--processes", "2")
        run = toril(shop, "shop:app", "--queue", "images=4", *place)
        assert run.returncode == 0, run.stderr
        assert "2 processes with 4 jobs each on images" in run.stdout
        assert [await job.wait_until_finished(5) for job in jobs] == [2 * n for n in range(20)]


async def test_a_worker_is_run_as_it_is(valkey: Server, prefix: str, shop: Path) -> None:
    async with Queue("emails", redis=valkey.url, prefix=prefix) as emails:
        job = await emails.add("anything")
        own = {"WORKER_REDIS": valkey.url, "WORKER_PREFIX": prefix}
        run = toril(shop, "shop:worker", "--until-idle", **own)
        assert run.returncode == 0, run.stderr
        assert await job.wait_until_finished(5) == "handled"
        refused = toril(shop, "shop:worker", "--concurrency", "5", **own)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert (
            "--concurrency: is given, and shop:worker is a worker with options of its own" in refused.stderr
        )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("shop:app", "--queue", "videos"), "videos has no tasks; queues with tasks are emails, images"),
        (("shop:app", "--queue", "images=many"), "'images=many' has no concurrency"),
        (("shop:app", "--batch-size", "5"), "batch: is not for apps"),
        (("shop:handle",), "--queue: is missing"),
        (("shop:number",), "shop:number is a int"),
        (("shop:send", "--queue", "emails"), "shop:send is a task; name its app, such as package.module:app"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line(shop: Path, arguments: tuple[str, ...], problem: str) -> None:
    run = toril(shop, *arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert problem in run.stderr


# --- options --------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, shop
worker = shop.app.worker()
print(json.dumps({str(name): [one.concurrency, one.options.job_timeout, one.options.drain_delay]
                  for name, one in zip(worker.queues, worker.workers)}))
"""

FILE = """
[tool.toril]
concurrency = 7
job_timeout = 99
drain_delay = 3
[tool.toril.queues.emails]
drain_delay = 2
"""


def test_code_comes_before_the_environment_and_this_before_the_file(shop: Path) -> None:
    def chosen(**environment: str) -> dict[str, Any]:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=shop,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        assert run.returncode == 0, run.stderr
        found: dict[str, Any] = json.loads(run.stdout)
        return found

    assert chosen() == {"emails": [1, 60, 5], "images": [2, 60, 5]}
    (shop / "pyproject.toml").write_text(FILE)
    assert chosen() == {"emails": [7, 60, 2], "images": [2, 60, 3]}
    assert chosen(TORIL_CONCURRENCY="9", TORIL_DRAIN_DELAY="1.5") == {
        "emails": [9, 60, 1.5],
        "images": [2, 60, 1.5],
    }


def test_the_command_line_comes_first_also_for_functions(shop: Path) -> None:
    (shop / "pyproject.toml").write_text("[tool.toril]\nconcurrency = 0\n")
    run = toril(shop, "shop:handle", "--queue", "emails")
    assert "concurrency" in run.stderr and run.returncode == 2  # of the file: not valid
    (shop / "pyproject.toml").write_text("[tool.toril]\nconcurency = 5\n")
    run = toril(shop, "shop:app")
    assert "did you mean concurrency" in run.stderr


async def test_prefix_server_and_processes_may_be_in_the_file(
    valkey: Server, prefix: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORIL_REDIS_URL", raising=False)
    for target, queue in (("shop:app", ()), ("shop:handle", ("--queue", "emails"))):
        (shop / "pyproject.toml").write_text(
            f'[tool.toril]\nredis = "{valkey.url}"\nprefix = "{prefix}"\nprocesses = 2\nuntil_idle = true\n'
        )
        async with Queue("emails", redis=valkey.url, prefix=prefix) as emails:
            job = await emails.add("send", {"to": "a@b.c"})
            run = toril(shop, target, *queue)
            assert run.returncode == 0, run.stderr
            assert "2 processes with" in run.stdout
            assert await job.wait_until_finished(5) in ("resource a@b.c", "handled")
            refused = toril(shop, target, *queue, TORIL_PROCESSES="many")
            assert (refused.returncode, refused.stdout) == (2, "")
            assert "TORIL_PROCESSES: Input should be a valid integer" in refused.stderr
            one = toril(shop, target, *queue, "--processes", "1", TORIL_PROCESSES="many")
            assert one.returncode == 0 and "2 processes" not in one.stdout, one.stderr


@pytest.mark.parametrize("target", ["shop:app", "shop:handle"])
def test_options_without_a_flag_are_given_by_name(shop: Path, target: str) -> None:
    for given, problem in (
        ("max_stalled_count=no", "max_stalled_count: is a str; give an integer of at least 0"),
        ("max_stalled=1", "did you mean max_stalled_count"),
        ("concurrency=4", "concurrency has an option of its own; write --concurrency instead"),
    ):
        run = toril(shop, target, "--queue", "emails", "--option", given)
        assert (run.returncode, run.stdout) == (2, "")
        assert problem in run.stderr


def test_values_of_variables_are_read_as_what_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "TORIL_RATE_LIMIT": "100/60",
        "TORIL_LOG_PAYLOADS": "true",
        "TORIL_JOB_TIMEOUT": "2.5",
        "TORIL_MAX_RESULT_SIZE": "none",
        "TORIL_RELIABLE": "true",
        "TORIL_SOMETHING": "else",
    }.items():
        monkeypatch.setenv(name, value)
    assert options_from_outside(QueueName("bullmq", "emails")) == {
        "rate_limit": RateLimit(100, 60),
        "log_payloads": True,
        "job_timeout": 2.5,
        "max_result_size": None,
    }
    assert options_from_outside(QueueName("list", "emails"))["reliable"] is True
    monkeypatch.setenv("TORIL_RATE_LIMIT", "fast")
    with pytest.raises(InvalidOption, match="JOBS/SECONDS"):
        options_from_outside(QueueName("bullmq", "emails"))
    (tmp_path / "pyproject.toml").write_text("[tool")
    with pytest.raises(InvalidOption, match="cannot be read"):
        options_from_outside(QueueName("list", "emails"))


# --- starting again -------------------------------------------------------------------------------------------------


async def test_a_worker_starts_again_when_a_file_changes(valkey: Server, prefix: str, shop: Path) -> None:
    module = shop / "changing.py"
    text = "async def handle(job):\n    return {!r}\n"
    module.write_text(text.format("old"))
    command = [sys.executable, "-m", "toril.cli", "worker", "changing:handle", "--queue", "q", "--reload"]
    process = subprocess.Popen(
        [*command, "--redis", valkey.url, "--prefix", prefix],
        cwd=shop,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with Queue("q", redis=valkey.url, prefix=prefix) as queue:
            assert await (await queue.add("x")).wait_until_finished(30) == "old"
            module.write_text("this is not Python\n")
            os.utime(module, (time.time() + 1, time.time() + 1))
            module.write_text(text.format("new"))
            os.utime(module, (time.time() + 2, time.time() + 2))
            while await (await queue.add("x")).wait_until_finished(30) != "new":
                pass
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert b"files have changed" in errors
