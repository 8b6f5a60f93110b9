"""The documents about the command, the doctor and observability are true: what they show runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from prometheus_client import CollectorRegistry

from toril.cli._app import app
from toril.observe.grafana_files import dashboard_text
from toril.telemetry.prometheus import PrometheusMetrics

DOCUMENTS = Path(__file__).parents[2] / "docs"
PROGRAM_AND_OUTPUT = re.compile(r"```python\n(?P<program>.*?)```\n\n```text\n(?P<output>.*?)```", re.DOTALL)
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def text_of(name: str) -> str:
    return (DOCUMENTS / f"{name}.md").read_text(encoding="utf-8")


def programs() -> list[object]:
    found = PROGRAM_AND_OUTPUT.finditer(text_of("observability"))
    return [pytest.param(one["program"], one["output"], id=str(at)) for at, one in enumerate(found, 1)]


@pytest.mark.parametrize(("program", "output"), programs())
def test_a_program_prints_what_its_document_says(program: str, output: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (run.stdout, run.returncode) == (output, 0), run.stderr


def test_the_first_dialogue_with_the_command_goes_as_it_is_shown(tmp_path: Path) -> None:
    dialogue = CONSOLE.search(text_of("cli"))
    assert dialogue is not None
    parts = re.findall(r"^\$ (.*)\n((?:[^$\n].*\n)*)", dialogue[1], re.MULTILINE)
    assert len(parts) >= 8
    for line, output in parts:
        words = [sys.executable, "-m", "toril.cli", *shlex.split(line)[1:]]
        run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=50)
        assert (run.returncode, run.stdout) == (0, output), (line, run.stderr)


def test_every_command_is_in_the_document() -> None:
    table = text_of("cli").split("## All commands")[1].split("## Workers")[0]
    group = typer.main.get_command(app)
    for name in group.commands:  # type: ignore[attr-defined]
        assert re.search(rf"`{name}\b", table), f"{name} is not described"


@pytest.mark.parametrize("document", ["cli", "dashboard", "doctor"])
def test_every_option_that_is_shown_exists(document: str) -> None:
    group = typer.main.get_command(app)
    for line in re.findall(r"^\$ toril (.*)$", text_of(document), re.MULTILINE):
        words = shlex.split(line.split(">")[0])
        command = group.commands[words[0]]  # type: ignore[attr-defined]
        known = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_every_metric_is_in_the_document() -> None:
    text = text_of("observability")
    families = PrometheusMetrics(CollectorRegistry()).registry.collect()
    names = {f"{one.name}_total" if one.type == "counter" else one.name for one in families}
    names |= set(re.findall(r"bullmq_(?:dlq|stream|oldest)_\w+", dashboard_text()))
    assert {name for name in names if f"`{name}`" not in text} == set()
