"""The environment of the runs: one server, the processes of the contenders, and what each run cost.

Guarantee: each run starts on an empty server and in a new process. Start-up is not part of any figure. CPU and memory
of the server are read from the server itself.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.figures import percentiles
from tests.servers import Server

TIME_LIMIT = 600.0  # seconds for one run, ten times what any run needs
ERROR_CHARACTERS = 1200  # of standard error, in the message of a failed run
ENOUGH = 0.99  # share of the jobs; docket sometimes leaves one, which does not change its rate
PER_JOBS = 10_000  # memory is reported per this number of completed jobs
REWRITE_CHECK_SECONDS = 0.02
BULLMQ_FOLDERS = ("toril", "node", "bullmq-py")


class RunFailed(Exception):
    """A contender did not complete its run; the message ends with its standard error."""


class Unsupported(Exception):
    """A contender does not offer this kind of workload."""


class Environment:
    """A started server, and the kinds of run that can be measured on it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._client = server.client()

    def close(self) -> None:
        self._client.close()

    def clear(self) -> None:
        """Deletes all keys, returns freed memory to the system, and starts an append-only file anew if there is one.

        So a file grows in each run from nothing, and no run pays for rewriting that of another.
        """
        self._client.flushall()
        self._client.memory_purge()
        if self.server.settings.get("appendonly") == "yes":
            self._rewrite_file()

    def _rewrite_file(self) -> None:
        self._client.bgrewriteaof()
        while self._file_info("aof_rewrite_in_progress") or self._file_info("aof_rewrite_scheduled"):
            time.sleep(REWRITE_CHECK_SECONDS)

    def _file_info(self, name: str) -> int:
        return int(self._client.info("persistence").get(name, 0))

    def server_version(self) -> str:
        info = self._client.info("server")
        return str(info.get("valkey_version") or info["redis_version"])

    # --- kinds of run --------------------------------------------------------------------------------------

    def add(self, contender: Contender, parameters: Mapping[str, Any]) -> dict[str, float]:
        """Measures adding jobs, in bulk or one by one."""
        self.clear()
        cpu = self._cpu()
        figures = self._run_task(contender, parameters)
        return {
            "rate": figures["jobs"] / figures["seconds"],
            "client_us": figures["cpu"] / figures["jobs"] * 1e6,
            "server_us": (self._cpu() - cpu) / figures["jobs"] * 1e6,
        }

    def process(
        self, contender: Contender, parameters: Mapping[str, Any], processes: int = 1
    ) -> dict[str, float]:
        """Fills a queue, then processes it; only the processing is timed."""
        if parameters.get("scripts_known"):
            self._load_scripts(contender, parameters)
        self.clear()
        memory = self._memory()
        jobs = parameters["jobs"]
        self._run_task(contender, {**parameters, "task": "bulk"})
        cpu = self._cpu()
        size = self._file_info("aof_current_size")
        parts = self._run_tasks(
            [contender] * processes, {**parameters, "task": "process", "shared": processes > 1}
        )
        spent = self._cpu() - cpu
        self._check(contender, parameters, parts)
        done = sum(part["jobs"] for part in parts)
        alone = parts[0]["seconds"]
        elapsed = max(part["ended"] for part in parts) - min(part["began"] for part in parts)
        return {
            "rate": done / (alone if processes == 1 else elapsed),
            "client_us": sum(part["cpu"] for part in parts) / done * 1e6,
            "server_us": spent / done * 1e6,
            "rss_mb": max(part["rss_mb"] for part in parts),
            "memory_mb": (self._memory() - memory) / jobs * PER_JOBS / 1e6,
        } | self._file_growth(size, done)

    def _file_growth(self, size: int, jobs: float) -> dict[str, float]:
        """Returns the bytes that a job added to the append-only file; nothing without one, or if it was rewritten."""
        growth = self._file_info("aof_current_size") - size
        return {"file_bytes": growth / jobs} if growth > 0 else {}

    def _load_scripts(self, contender: Contender, parameters: Mapping[str, Any]) -> None:
        """Loads all scripts first, so that their memory is not counted as memory of jobs."""
        self.clear()
        for task in ("bulk", "process"):
            self._run_task(contender, {**parameters, "task": task, "jobs": 200})

    def latency(self, contender: Contender, parameters: Mapping[str, Any]) -> dict[str, float]:
        """Measures single jobs on an idle worker, in milliseconds."""
        self.clear()
        figures = self._run_task(contender, parameters)
        return percentiles("started_", figures["started_ms"]) | percentiles("known_", figures["known_ms"])

    def depth(self, contender: Contender, parameters: Mapping[str, Any], depth: int) -> dict[str, float]:
        """Measures the first jobs of a queue of `depth` jobs and of a short one, alternately.

        Each queue has its own new server and is treated in the same way, so that equal depths give equal rates. A round
        ends while both queues still hold jobs, because a queue that becomes empty fetches less and seems faster.
        """
        with self._new_server() as one, self._new_server() as other:
            options = {**parameters["options"], "deep": depth, "deep_url": one.url, "shallow_url": other.url}
            figures = self._run_task(contender, {**parameters, "task": "rounds", "options": options})
        rounds = list(zip(figures["deep"], figures["shallow"], strict=True))
        deep, shallow = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        # The ratio is taken per round, because the speed of the machine changes between rounds.
        ratio = statistics.median(deep / shallow for deep, shallow in rounds)
        return {"rate": deep, "shallow_rate": shallow, "beside_shallow": ratio}

    def _new_server(self) -> Server:
        return Server(self.server.binary, self.server.settings)

    # --- processes of contenders --------------------------------------------------------------------------------------

    def _run_task(self, contender: Contender, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return self._run_tasks([contender], parameters)[0]

    def _run_tasks(
        self, contenders: Sequence[Contender], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        started = [self._start(one, parameters) for one in contenders]
        return [self._result(one, process) for one, process in zip(contenders, started, strict=True)]

    def _start(self, contender: Contender, parameters: Mapping[str, Any]) -> subprocess.Popen[str]:
        task = {
            **parameters,
            "url": self.server.url,
            "kind": contender.kind,
            "uvloop": contender.folder != "toril" or contender.needs_uvloop,
        }
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *contender.command, json.dumps(task)],
            env=contender.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _result(contender: Contender, process: subprocess.Popen[str]) -> dict[str, Any]:
        try:
            output, errors = process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise RunFailed(f"{contender.label} did not end within {TIME_LIMIT:g} s") from error
        figures = _last_object(output)
        if process.returncode or figures is None:
            raise RunFailed(
                f"{contender.label} ended with {process.returncode}: {errors[-ERROR_CHARACTERS:]}"
            )
        if figures.get("unsupported"):
            raise Unsupported(contender.label)
        return figures

    # --- the server ----------------------------------------------------------------------------------

    def _cpu(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def _memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def _check(
        self, contender: Contender, parameters: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]
    ) -> None:
        """Raises unless all jobs were processed; on BullMQ queues the completed set is counted."""
        done = sum(part["jobs"] for part in parts)
        if done < parameters["jobs"] * ENOUGH:
            raise RunFailed(f"{contender.label} did {done} of {parameters['jobs']} jobs")
        if contender.folder in BULLMQ_FOLDERS and not contender.kind:
            completed = self._client.zcard(f"bull:{parameters['queue']}:completed")
            if completed != parameters["jobs"]:
                raise RunFailed(f"{contender.label} left {completed} of {parameters['jobs']} jobs completed")


def _last_object(output: str) -> dict[str, Any] | None:
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return found if isinstance(found, dict) else None
