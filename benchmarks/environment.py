"""The arena: one server on which contenders work one after another, and what each run cost.

Guarantee: each run starts on an empty server and in a fresh process; start-up is not part of any figure; the server's
share of CPU and memory is taken from the server itself.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.figures import percentiles
from tests.servers import Server

TIME_LIMIT = 600.0  # seconds for one run; nothing here takes a tenth of it unless it hangs
LAST_WORDS = 1200
ENOUGH = 0.99  # of the jobs; docket leaves one behind now and then, and its rate does not depend on it
PER_JOBS = 10_000  # memory is told for as many finished jobs
BULLMQ_FOLDERS = ("toril", "node", "bullmq-py")


class RunFailed(Exception):
    """A contender did not do its work; the message ends with its own last words."""


class Unsupported(Exception):
    """A contender does not offer this kind of work."""


class Arena:
    """A started server and the ways of working on it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._client = server.client()

    def close(self) -> None:
        self._client.close()

    def clear(self) -> None:
        """An empty server, with the memory of the last run given back."""
        self._client.flushall()
        self._client.memory_purge()

    def server_version(self) -> str:
        info = self._client.info("server")
        return str(info.get("valkey_version") or info["redis_version"])

    # --- kinds of work --------------------------------------------------------------------------------------

    def add(self, contender: Contender, words: Mapping[str, Any]) -> dict[str, float]:
        """Adds jobs, in bulk or one by one."""
        self.clear()
        cpu = self._cpu()
        figures = self._ask(contender, words)
        return {
            "rate": figures["jobs"] / figures["seconds"],
            "client_us": figures["cpu"] / figures["jobs"] * 1e6,
            "server_us": (self._cpu() - cpu) / figures["jobs"] * 1e6,
        }

    def process(self, contender: Contender, words: Mapping[str, Any], processes: int = 1) -> dict[str, float]:
        """Fills a queue, then works it off; only the second part is timed."""
        if words.get("scripts_known"):
            self._make_scripts_known(contender, words)
        self.clear()
        memory = self._memory()
        jobs = words["jobs"]
        self._ask(contender, {**words, "task": "bulk"})
        cpu = self._cpu()
        parts = self._ask_all([contender] * processes, {**words, "task": "process", "shared": processes > 1})
        spent = self._cpu() - cpu
        self._check(contender, words, parts)
        done = sum(part["jobs"] for part in parts)
        alone = parts[0]["seconds"]
        together = max(part["ended"] for part in parts) - min(part["began"] for part in parts)
        return {
            "rate": done / (alone if processes == 1 else together),
            "client_us": sum(part["cpu"] for part in parts) / done * 1e6,
            "server_us": spent / done * 1e6,
            "rss_mb": max(part["rss_mb"] for part in parts),
            "memory_mb": (self._memory() - memory) / jobs * PER_JOBS / 1e6,
        }

    def _make_scripts_known(self, contender: Contender, words: Mapping[str, Any]) -> None:
        """Scripts that the server has compiled stay in its memory: they are no part of what jobs need."""
        self.clear()
        for task in ("bulk", "process"):
            self._ask(contender, {**words, "task": task, "jobs": 200})

    def latency(self, contender: Contender, words: Mapping[str, Any]) -> dict[str, float]:
        """Single jobs on an idle worker, in milliseconds."""
        self.clear()
        figures = self._ask(contender, words)
        return percentiles("started_", figures["started_ms"]) | percentiles("known_", figures["known_ms"])

    def depth(self, contender: Contender, words: Mapping[str, Any], depth: int) -> dict[str, float]:
        """The first jobs of a queue that holds `depth` beside those of a shallow one, in turns.

        Both have a server of their own that has seen nothing else, and are treated alike: with equal depths the two are
        equal. A round ends while both queues still hold jobs: one that runs empty would fetch less and look faster.
        """
        with Server.valkey() as one, Server.valkey() as other:
            options = {**words["options"], "deep": depth, "deep_url": one.url, "shallow_url": other.url}
            figures = self._ask(contender, {**words, "task": "rounds", "options": options})
        rounds = list(zip(figures["deep"], figures["shallow"], strict=True))
        deep, shallow = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        # Of each round by itself: the speed of the machine changes from one to the next.
        ratio = statistics.median(deep / shallow for deep, shallow in rounds)
        return {"rate": deep, "shallow_rate": shallow, "beside_shallow": ratio}

    # --- conversations --------------------------------------------------------------------------------------

    def _ask(self, contender: Contender, words: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask_all([contender], words)[0]

    def _ask_all(self, contenders: Sequence[Contender], words: Mapping[str, Any]) -> list[dict[str, Any]]:
        started = [self._start(one, words) for one in contenders]
        return [self._answer(one, process) for one, process in zip(contenders, started, strict=True)]

    def _start(self, contender: Contender, words: Mapping[str, Any]) -> subprocess.Popen[str]:
        task = {
            **words,
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
    def _answer(contender: Contender, process: subprocess.Popen[str]) -> dict[str, Any]:
        try:
            said, complained = process.communicate(timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise RunFailed(f"{contender.label} gave no answer within {TIME_LIMIT:g} s") from error
        figures = _last_object(said)
        if process.returncode or figures is None:
            raise RunFailed(f"{contender.label} ended with {process.returncode}: {complained[-LAST_WORDS:]}")
        if figures.get("unsupported"):
            raise Unsupported(contender.label)
        return figures

    # --- the server's side ----------------------------------------------------------------------------------

    def _cpu(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def _memory(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def _check(
        self, contender: Contender, words: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]
    ) -> None:
        """A worker that was told to stop has settled what it did: BullMQ's queues can be asked."""
        done = sum(part["jobs"] for part in parts)
        if done < words["jobs"] * ENOUGH:
            raise RunFailed(f"{contender.label} did {done} of {words['jobs']} jobs")
        if contender.folder in BULLMQ_FOLDERS and not contender.kind:
            completed = self._client.zcard(f"bull:{words['queue']}:completed")
            if completed != words["jobs"]:
                raise RunFailed(f"{contender.label} left {completed} of {words['jobs']} jobs completed")


def _last_object(said: str) -> dict[str, Any] | None:
    lines = said.strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return found if isinstance(found, dict) else None
