"""Drivers and executors killed with -9 while they work: nothing is doubled, nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.servers import Server
from tests.spark.long_run import DEFAULT_EVENTS, QUEUE
from tests.spark.makers import Factories
from tests.spark.up_kills import WITHOUT_CHECKPOINT, Killer, kill_under_load, lost_in, outcomes_in
from toril.lake import Lake
from toril.protocol.keys import QueueKeys

pytestmark = pytest.mark.timeout(1500)  # each kill costs the start of another JVM, on shared cores
LOCAL = "local[2]"


def start(master: str, action: str, url: str, prefix: str, lake: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.spark.child", master, action, url, prefix, str(lake)]
    with complaints(lake).open("ab") as log:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, start_new_session=True)


def complaints(lake: Path) -> Path:
    """Where drivers of a lake write what went wrong."""
    return lake.with_name(f"{lake.name}.log")


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """The driver, its JVM and its Python workers, all at once and without warning.

    A JVM whose Python dies starts another before it dies itself; left alone, that one would go on writing into the next
    test. So the whole session is killed, again and again until nobody is left of it.
    """
    while family := family_of(process.pid):
        for one in family:
            with suppress(psutil.Error):
                one.kill()
        process.poll()
    _bury(process)


def kill_alone(process: subprocess.Popen[bytes]) -> None:
    """The driver's Python only: its JVM and Python workers find out by themselves, while the next run begins."""
    process.kill()
    _bury(process)


def _bury(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def family_of(leader: int) -> list[psutil.Process]:
    """Everybody in the session that a process leads, orphans too."""
    return [one for one in psutil.process_iter() if _session(one.pid) == leader and _is_running(one)]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def finish(process: subprocess.Popen[bytes]) -> None:
    process.communicate(timeout=500)
    lake: Any = process.args
    assert process.returncode == 0, complaints(Path(lake[-1])).read_text(errors="replace")[-5000:]


def when(condition: Callable[[], bool], process: subprocess.Popen[bytes], pause: float = 0.005) -> bool:
    """Waits for a sign of life in the tables or the queue; False when the process ended before."""
    while process.poll() is None:
        if condition():
            return True
        time.sleep(pause)
    return False


def commits(lake: Path, table: str) -> int:
    return len(list((lake / table / "_delta_log").glob("*.json")))


def check_tables(lake: Path, queue: Any) -> None:
    tables = Lake(lake)
    found = tables.query(
        "select count(*) as n, count(distinct id) as ids, sum(lost) as lost from bronze.events"
    ).to_pylist()
    assert found == [{"n": queue.entries_added, "ids": queue.entries_added, "lost": None}]
    outcomes = tables.query("select outcome, count(*) as n from silver.attempts group by 1").to_pylist()
    assert {row["outcome"]: row["n"] for row in outcomes} == queue.outcomes
    total = tables.query("select sum(attempts)::int as n from gold.queue_minute").to_pylist()
    assert total == [{"n": queue.outcomes.total()}]


def test_a_driver_killed_between_its_commits_and_started_at_once_goes_on_where_the_tables_end(
    valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("killed")
    queue.add(500)
    queue.work(fail=0.1, retry=0.2)
    process = start(LOCAL, "up", valkey_url, prefix, tmp_path)
    # Attempts are committed, the state of the jobs that they leave behind is not.
    assert when(lambda: commits(tmp_path, "silver/attempts") >= 2, process)
    kill_alone(process)
    finish(start(LOCAL, "run", valkey_url, prefix, tmp_path))
    check_tables(tmp_path, queue)
    assert not family_of(process.pid), "nobody outlives a driver for long"


def java_of(process: subprocess.Popen[bytes]) -> psutil.Process | None:
    """Spark's Java process of a driver."""
    family = psutil.Process(process.pid).children(recursive=True)
    return next((one for one in family if "SparkSubmit" in " ".join(_words(one))), None)


def attempts_in(lake: Path) -> int:
    return int(Lake(lake).query("select count(*) as n from silver.attempts").to_pylist()[0]["n"])


def test_ingest_goes_on_while_a_killed_java_is_started_again(
    valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("relaunched")
    queue.add(50)
    queue.work(retry=0.2)
    process = start(LOCAL, "up", valkey_url, prefix, tmp_path)
    assert when(lambda: attempts_in(tmp_path) == queue.outcomes.total(), process, 0.5)
    first = java_of(process)
    assert first is not None
    first.kill()
    queue.add(50)
    queue.work(fail=0.2)
    killed_at = time.monotonic()
    assert when(lambda: events_in(tmp_path) == queue.entries_added, process, 0.1)
    assert time.monotonic() - killed_at < 10, "ingest does not wait for Java"
    assert when(lambda: attempts_in(tmp_path) == queue.outcomes.total(), process, 0.5)
    second = java_of(process)
    assert second is not None
    assert second.pid != first.pid
    kill_family(process)
    said = complaints(tmp_path).read_text(errors="replace")
    assert f"Spark's Java process (pid {first.pid}) was ended by SIGKILL; another is started" in said


def test_a_run_whose_java_is_killed_says_so_and_the_next_one_ends_it(
    valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    """The error in Python is a refused connection, which looks like one of Redis."""
    queue = factory("unfinished")
    queue.add(500)
    queue.work(fail=0.1, retry=0.2)
    process = start(LOCAL, "run", valkey_url, prefix, tmp_path)
    assert when(lambda: commits(tmp_path, "bronze/events") >= 2, process)
    java = java_of(process)
    assert java is not None
    java.kill()
    process.communicate(timeout=100)
    assert process.returncode == 1
    said = complaints(tmp_path).read_text(errors="replace").splitlines()[-1]
    assert "PipelineFailed: " in said
    assert (
        f"Spark's Java process (pid {java.pid}) was ended by SIGKILL; the tables are whole, run it again"
        in said
    )
    finish(start(LOCAL, "run", valkey_url, prefix, tmp_path))
    check_tables(tmp_path, queue)


def events_in(lake: Path) -> int:
    return int(Lake(lake).query("select count(*) as n from bronze.events").to_pylist()[0]["n"])


def test_up_under_load_loses_no_event_whichever_process_is_killed_in_the_middle_of_a_commit(
    valkey_url: str, factory: Factories, tmp_path: Path
) -> None:
    """The small version of `python -m tests.spark.up_kills`, with BullMQ's default trimming."""
    queue = factory(QUEUE, events_max_len=DEFAULT_EVENTS)
    with Killer(valkey_url, tmp_path, queue) as killer:
        kill_under_load(killer, WITHOUT_CHECKPOINT, rate=50)
        assert lost_in(killer.lake) == 0
        assert outcomes_in(killer.lake) == queue.outcomes


def test_up_with_a_checkpoint_starts_its_query_again_and_loses_no_event(
    valkey_url: str, factory: Factories, tmp_path: Path
) -> None:
    """The query needs Spark: before it is up, and while it is down, the driver reads in its place."""
    queue = factory(QUEUE, events_max_len=DEFAULT_EVENTS)
    with Killer(valkey_url, tmp_path, queue, checkpoint=True) as killer:
        # Without a query there is no source runner: it was started again after Java was killed.
        kill_under_load(killer, ["java", "source runner"], rate=50)
        assert lost_in(killer.lake) == 0
        assert killer.kills == {"java": 1, "source runner": 1}


def test_a_write_that_is_killed_and_started_again_adds_each_row_once(
    valkey: Server, valkey_url: str, prefix: str, tmp_path: Path
) -> None:
    keys, rows = QueueKeys("many", prefix), 10_000
    with valkey.client() as client:
        process = start(LOCAL, str(rows), valkey_url, prefix, tmp_path)
        assert when(lambda: client.llen(keys.wait) >= 2_500, process)
        kill_family(process)
        for job in client.lrange(keys.wait, 0, 99):  # finished and removed meanwhile
            client.delete(keys.job(job.decode()))
        finish(start(LOCAL, str(rows), valkey_url, prefix, tmp_path))
        assert client.llen(keys.wait) == rows
        assert len(set(client.lrange(keys.wait, 0, -1))) == rows


def executors_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [
        one
        for one in psutil.Process(process.pid).children(recursive=True)
        if "CoarseGrainedExecutorBackend" in " ".join(_words(one))
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_an_executor_that_dies_is_replaced_and_the_rows_are_right(
    valkey_url: str, prefix: str, factory: Factories, tmp_path: Path
) -> None:
    queue = factory("cluster")
    queue.add(300)
    queue.work(retry=0.2)
    process = start("local-cluster[2,1,512]", "run", valkey_url, prefix, tmp_path)
    assert when(lambda: commits(tmp_path, "bronze/events") >= 2, process)
    executors_of(process)[0].kill()
    finish(process)
    check_tables(tmp_path, queue)
