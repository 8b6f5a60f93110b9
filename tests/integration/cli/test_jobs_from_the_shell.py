"""Adding jobs, looking at them and looking after them, each by one command."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Result, Toril
from tests.integration.cli.run_in_thread import called
from tests.servers import Server
from toril import Queue, Worker
from toril.codecs import AesGcm, Codecs

KINDS = ("emails", "list:gen", "stream:jobs.browser")


def ids(result: Result) -> list[str]:
    assert result.code == 0, result.err
    return list(result.data["ids"])


async def fail_all(url: str, prefix: str) -> None:
    async def handle(job: object) -> None:
        raise ValueError("refused")

    worker = Worker("emails", handle, redis=url, prefix=prefix)
    async with worker:
        await worker.run_until_idle()


@pytest.mark.parametrize("queue", KINDS)
def test_a_job_added_is_listed_whatever_the_kind_of_its_queue(
    toril: Toril, here: list[str], queue: str
) -> None:
    added = toril("add", queue, "send", "--data", '{"to": "a@b.c"}', "--json", *here)
    assert len(ids(added)) == 1
    (listed,) = toril("queues", "--json", *here).data
    assert (listed["queue"], listed["states"]["waiting"]) == (queue, 1)
    assert queue in toril("queues", *here).out


@pytest.mark.parametrize("queue", KINDS)
def test_many_jobs_come_from_a_file_of_lines(
    toril: Toril, here: list[str], queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.ndjson"
    file.write_text('{"n": 1}\n\n{"n": 2}\n{"n": 3}\n')
    assert len(ids(toril("add", queue, "send", "--lines", str(file), "--json", *here))) == 3


def test_options_of_a_job_reach_the_queue(toril: Toril, here: list[str]) -> None:
    words = ["--delay", "60", "--attempts", "7", "--backoff", "fixed:2", "--job-id", "order-1", "--lifo"]
    assert toril("add", "emails", "send", *words, *here).out.strip() == "order-1"
    again = toril("add", "emails", "send", "--job-id", "order-1", *here)
    assert again.out.strip() == "order-1"
    assert "1 of 1 jobs existed already and were not added" in again.err
    assert toril("add", "emails", "send", "--job-id", "order-1", "--json", *here).data["existing"] == [
        "order-1"
    ]
    job = toril("inspect", "emails", "order-1", "--json", *here).data
    assert job["state"] == "delayed"
    assert job["opts"]["attempts"] == 7
    assert job["opts"]["backoff"] == {"type": "fixed", "delay": 2000}
    assert job["delay"] == 60_000


def test_encoded_payloads_are_shown_as_such(toril: Toril, here: list[str]) -> None:
    codecs = Codecs([AesGcm({"2026": bytes(32)})])
    raw = codecs.encode(b'{"to":"a@b.c"}', "data").decode()
    (job_id,) = ids(toril("add", "emails", "send", "--data", raw, "--json", *here))
    assert "encoded (aes-gcm key 2026), " in toril("inspect", "emails", *here).out
    shown = toril("inspect", "emails", job_id, *here).out
    assert "encoded (aes-gcm key 2026), " in shown and "--json has it as it is stored" in shown
    data = toril("inspect", "emails", job_id, "--json", *here).data["data"]
    assert data["_toril"]["steps"] == [{"codec": "aes-gcm", "key": "2026"}]


def test_a_queue_is_shown_with_its_newest_jobs(toril: Toril, here: list[str]) -> None:
    (job_id,) = ids(toril("add", "emails", "send", "--data", '{"n": 5}', "--json", *here))
    shown = toril("inspect", "emails", *here).out
    assert job_id in shown and "1 waiting" in shown and '{"n":5}' in shown
    data = toril("inspect", "emails", "--state", "waiting", "--json", *here).data
    assert [job["id"] for job in data["jobs"]] == [job_id]


def test_a_queue_is_paused_and_resumed(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", *here)
    assert toril("pause", "emails", *here).out == "emails is paused\n"
    (listed,) = toril("queues", "--json", *here).data
    assert listed["paused"] is True
    assert toril("resume", "emails", "--json", *here).data == {"queue": "emails", "paused": False}
    assert toril("queues", "--json", *here).data[0]["states"]["waiting"] == 1


def test_delayed_jobs_are_promoted_one_by_one_or_all(toril: Toril, here: list[str]) -> None:
    first, *_ = ids(toril("add", "emails", "send", "--delay", "60", "--count", "3", "--json", *here))
    assert toril("promote", "emails", first, *here).out == "1 jobs are ready\n"
    assert toril("promote", "emails", "--all", "--json", *here).data["promoted"] == 2
    assert toril("queues", "--json", *here).data[0]["states"]["waiting"] == 3


def test_waiting_jobs_are_drained(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", "--count", "4", *here)
    toril("add", "emails", "send", "--delay", "60", *here)
    assert toril("drain", "emails", "--yes", "--json", *here).data["removed"] == 4
    assert toril("drain", "emails", "--delayed", "-y", "--json", *here).data["removed"] == 1


def test_jobs_are_removed_by_id_and_a_queue_as_a_whole(toril: Toril, here: list[str]) -> None:
    first, second = ids(toril("add", "emails", "send", "--count", "2", "--json", *here))
    assert toril("remove", "emails", first, "--yes", *here).out == "1 jobs removed\n"
    assert toril("inspect", "emails", first, *here).code == 1
    assert toril("inspect", "emails", second, *here).code == 0
    assert toril("remove", "emails", "--all", "--yes", *here).out == "emails is removed\n"
    assert toril("queues", "--json", *here).data == []


def test_a_job_that_waits_is_cancelled(toril: Toril, here: list[str]) -> None:
    (job_id,) = ids(toril("add", "emails", "send", "--json", *here))
    assert toril("cancel", "emails", job_id, "-y", "--json", *here).data["outcome"] == "removed"


async def test_dead_jobs_of_a_bullmq_queue_are_listed_exported_replayed_and_purged(
    valkey: Server, prefix: str, tmp_path: Path
) -> None:
    """One queue through all that `dlq` and `retry` can do; the commands run in a thread, beside this loop."""
    here = ["--redis", valkey.url, "--prefix", prefix]
    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        await queue.add_bulk([("send", {"n": n}) for n in range(3)])
        await fail_all(valkey.url, prefix)
        rows = (await asyncio.to_thread(called, "dlq", "list", "emails", "--json", *here)).data
        assert [row["error"] for row in rows] == ["refused"] * 3
        file = tmp_path / "dead.ndjson"
        done = await asyncio.to_thread(called, "dlq", "export", "emails", str(file), *here)
        assert done.code == 0 and len(file.read_text().splitlines()) == 3
        one = rows[0]["job_id"]
        assert (await asyncio.to_thread(called, "retry", "emails", one, *here)).code == 0
        assert (await queue.get_job_counts()).failed == 2
        for words, retried in ((["--timestamp", "2020-01-01"], 0), (["--limit", "1"], 1)):
            result = await asyncio.to_thread(called, "retry", "emails", *words, "--json", *here)
            assert result.data["retried"] == retried
        await fail_all(valkey.url, prefix)
        assert (await asyncio.to_thread(called, "retry", "emails", one, *here)).code == 0
        replayed = await asyncio.to_thread(
            called, "dlq", "replay", "emails", "--reason", "refused", "--json", *here
        )
        assert replayed.data["replayed"] == 2
        await fail_all(valkey.url, prefix)
        purged = await asyncio.to_thread(called, "dlq", "purge", "emails", "--all", "--yes", "--json", *here)
        assert purged.data["purged"] == 3
        assert (await queue.get_job_counts()).total == 0


async def test_old_jobs_are_cleaned(valkey: Server, prefix: str) -> None:
    here = ["--redis", valkey.url, "--prefix", prefix]
    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        await queue.add_bulk([("send", {}) for _ in range(2)])
        await fail_all(valkey.url, prefix)
        young = await asyncio.to_thread(
            called, "clean", "emails", "--state", "failed", "--older-than", "3600", "-y", "--json", *here
        )
        assert young.data["removed"] == []
        old = await asyncio.to_thread(called, "clean", "emails", "--state", "failed", "-y", "--json", *here)
        assert len(old.data["removed"]) == 2


async def test_log_and_events_of_a_job_are_printed(valkey: Server, prefix: str) -> None:
    here = ["--redis", valkey.url, "--prefix", prefix]

    async def handle(job: object) -> None:
        await job.log("first line")  # type: ignore[attr-defined]
        await job.log("second line")  # type: ignore[attr-defined]

    async with Queue("emails", redis=valkey.url, prefix=prefix) as queue:
        job = await queue.add("send", {})
        async with Worker("emails", handle, redis=valkey.url, prefix=prefix) as worker:
            await worker.run_until_idle()
        assert (await asyncio.to_thread(called, "logs", "emails", job.id, *here)).lines == [
            "first line",
            "second line",
        ]
        tail = await asyncio.to_thread(called, "logs", "emails", job.id, "--tail", "1", "--json", *here)
        assert tail.data["lines"] == ["second line"]
        # A job that has ended has nothing more to say, so following ends by itself.
        assert (await asyncio.to_thread(called, "logs", "emails", job.id, "--follow", *here)).code == 0
        printed = await asyncio.to_thread(called, "events", "emails", "--job", job.id, *here)
        assert [line.split()[1] for line in printed.lines] == ["added", "waiting", "active", "completed"]
        typed = await asyncio.to_thread(called, "events", "emails", "--type", "completed", "--json", *here)
        assert '"event": "completed"' in typed.out


def test_a_narrow_screen_leaves_out_empty_columns_before_it_folds_cells(
    toril: Toril, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toril("add", "a-queue-with-a-long-name", "work", *here)
    monkeypatch.setenv("COLUMNS", "80")
    header, _, row = toril("queues", *here).lines[:3]
    assert header.split() == ["queue", "waiting", "oldest"]
    assert row.split()[:2] == ["a-queue-with-a-long-name", "1"]


def test_a_failed_job_is_shown_with_local_times_and_its_stack_trace(
    toril: Toril, here: list[str], valkey: Server, prefix: str
) -> None:
    (job_id,) = ids(toril("add", "emails", "send", "--json", *here))
    asyncio.run(fail_all(valkey.url, prefix))
    lines = toril("inspect", "emails", job_id, *here).out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines if " " in line.strip())
    added, ended = (datetime.fromisoformat(facts[name].strip()) for name in ("timestamp", "finishedOn"))
    assert added <= ended
    assert facts["stacktrace"].strip() == "Traceback (most recent call last):"
    assert facts["ValueError:"].strip() == "refused"
    (dead,) = toril("dlq", "list", "emails", "--json", *here).data
    assert datetime.fromisoformat(dead["at"]).tzinfo is not None


def test_on_a_narrow_screen_an_id_stays_in_one_line(
    toril: Toril, here: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = ids(toril("add", "emails", "send", "--data", '{"to": "a@b.c"}', "--json", *here))
    monkeypatch.setenv("COLUMNS", "60")
    lines = [line.split() for line in toril("inspect", "emails", *here).out.splitlines()]
    assert ["job", job_id] in lines
    assert ["state", "waiting"] in lines


def test_a_queue_that_was_never_used_is_distinguished_from_an_empty_one(
    toril: Toril, here: list[str]
) -> None:
    assert "never used" in toril("inspect", "emials", *here).out
    toril("add", "emails", "send", *here)
    toril("drain", "emails", "--yes", *here)
    assert toril("inspect", "emails", *here).out.startswith("emails: empty; ")


def test_misuse_names_the_help_of_its_own_command(toril: Toril) -> None:
    assert "(see `toril dlq show --help`)" in toril("dlq", "show").err
    assert "(see `toril --help`)" in toril("nothing").err


def test_a_backoff_that_is_not_built_in_is_added_with_a_warning(toril: Toril, here: list[str]) -> None:
    added = toril("add", "emails", "send", "--backoff", "exponental:2", *here)
    assert added.code == 0
    assert "'exponental' is neither fixed nor exponential" in added.err
    assert "toril:" not in toril("add", "emails", "send", "--backoff", "fixed:2", *here).err
    assert toril("add", "emails", "send", "--backoff", "fixed:-2", *here).code == 2


def test_a_queue_without_events_prints_a_warning(toril: Toril, here: list[str]) -> None:
    silent = toril("events", "emials", *here)
    said = f"server: {here[1]}\ntoril: emials has no events\n"
    assert (silent.code, silent.out, silent.err) == (0, "", said)


def test_characters_that_the_locale_lacks_are_escaped(here: list[str]) -> None:
    def shell(*words: str) -> str:
        command = [sys.executable, "-m", "toril.cli", *words, *here]
        ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
        return subprocess.run(command, env=ascii_only, capture_output=True, check=True).stdout.decode("ascii")

    shell("add", "emails", "send", "--job-id", "first", "--data", '{"to": "😀"}')
    assert "\\U0001f600" in shell("inspect", "emails")
    assert json.loads(shell("inspect", "emails", "first", "--json"))["data"] == {"to": "😀"}


def test_groups_are_given_weights_and_jobs(toril: Toril, here: list[str]) -> None:
    assert toril("groups", "list", "emails", *here).out == "emails has no groups\n"
    set_to_two = toril("groups", "set", "emails", "tenant-7", "--weight", "2", *here)
    assert set_to_two.out == "group tenant-7 of emails: weight 2, no limits\n"
    toril("add", "emails", "send", "--group", "tenant-7", "--job-id", "first", *here)
    found = toril("inspect", "emails", "first", "--json", *here).data
    assert found["opts"]["group"] == {"id": "tenant-7"} and found["priority"] == 8
    (group,) = toril("groups", "list", "emails", "--json", *here).data
    assert (group["group"], group["waiting"], group["weight"]) == ("tenant-7", 1, 2.0)


def test_limits_and_pauses_of_groups_from_the_shell(toril: Toril, here: list[str]) -> None:
    toril("groups", "set", "emails", "--concurrency", "1", "--keep-order", *here)
    shown = toril("groups", "set", "emails", "a", "--rate-limit", "10/0.5", "--max-size", "9", *here)
    assert shown.out == "group a of emails: weight 1, rate limit 10/0.5, max size 9\n"
    assert toril("groups", "pause", "emails", "b", *here).out == "group b of emails is paused\n"
    common, first, second = toril("groups", "list", "emails", "--json", *here).data
    assert (common["group"], common["concurrency"], common["keep_order"]) == (None, 1, True)
    assert (first["group"], first["rate_limit"], first["max_size"]) == ("a", "10/0.5", 9)
    assert (second["group"], second["paused"], second["concurrency"]) == ("b", True, None)
    listed = toril("groups", "list", "emails", *here).out
    assert "(all others)" in listed and "concurrency 1, keep order" in listed
    toril("groups", "resume", "emails", "b", *here)
    toril("groups", "set", "emails", "a", "--no-limits", *here)
    toril("groups", "set", "emails", "--no-limits", *here)
    assert toril("groups", "list", "emails", "--json", *here).data == []
