"""The tables of the lake as an asset, with the check of the pipeline as a check of the asset."""

from __future__ import annotations

import json
import os
import subprocess

import dagster as dg


def toril(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs `toril pipeline`, which has an environment of its own: TORIL is the path of the program there."""
    command = [os.environ["TORIL"], "pipeline", *words, "--lake", os.environ["LAKE"], "--json"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


@dg.asset
def lake() -> dg.MaterializeResult:
    """Brings all that is in the queues into the tables."""
    done = toril("run")
    if done.returncode:
        raise dg.Failure(f"toril pipeline run ended with {done.returncode}", metadata={"output": done.stdout})
    summary = json.loads(done.stdout)
    return dg.MaterializeResult(metadata={"events": summary["events"]})


@dg.asset_check(asset=lake)
def tables_agree() -> dg.AssetCheckResult:
    """Compares the tables with Redis, with each other and with their files."""
    done = toril("check")
    findings = [f"{one['subject']}: {one['problem']}; {one['remedy']}" for one in json.loads(done.stdout)]
    return dg.AssetCheckResult(passed=done.returncode == 0, metadata={"findings": "\n".join(findings)})


every_quarter = dg.ScheduleDefinition(
    name="every_quarter", target=dg.AssetSelection.all(), cron_schedule="*/15 * * * *"
)
defs = dg.Definitions(assets=[lake], asset_checks=[tables_agree], schedules=[every_quarter])
