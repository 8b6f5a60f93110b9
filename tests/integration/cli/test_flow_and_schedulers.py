"""`toril flow` and `toril schedulers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Toril

FLOW = {
    "name": "bake",
    "queue": "cakes",
    "data": {"n": 1},
    "children": [
        {"name": "mix", "queue": "steps", "options": {"attempts": 2}},
        {"name": "heat", "queue": "steps", "children": [{"name": "light", "queue": "fires"}]},
    ],
}


def test_a_flow_is_added_from_a_file_and_shown_as_a_tree(
    toril: Toril, here: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(FLOW))
    added = toril("flow", "add", str(file), "--json", *here).data
    assert [child["name"] for child in added["children"]] == ["mix", "heat"]
    shown = toril("flow", "show", "cakes", added["id"], "--json", *here).data
    assert shown["state"] == "waiting-children"
    states = {child["name"]: child["state"] for child in shown["children"]}
    assert states == {"mix": "waiting", "heat": "waiting-children"}
    assert "└── " in toril("flow", "show", "cakes", added["id"], *here).out


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"name": "a"}', '{"name": "a", "queue": "b", "colour": 1}', '{"name": "a", "queue": "b:c"}'],
)
def test_a_flow_that_is_none_is_refused(toril: Toril, here: list[str], tmp_path: Path, text: str) -> None:
    file = tmp_path / "flow.json"
    file.write_text(text)
    result = toril("flow", "add", str(file), *here)
    assert result.code == 2 and result.err.count("\n") == 1


def test_a_flow_that_does_not_exist_is_not_found(toril: Toril, here: list[str]) -> None:
    assert toril("flow", "show", "cakes", "nobody", *here).code == 1


def test_schedulers_are_set_listed_and_removed(toril: Toril, here: list[str]) -> None:
    words = ["--cron", "0 3 * * *", "--tz", "Europe/Zurich", "--name", "report", "--data", '{"n": 1}']
    assert toril("schedulers", "set", "emails", "nightly", *words, *here).code == 0
    assert (
        toril("schedulers", "set", "emails", "often", "--every", "3600", "--json", *here).data["id"]
        == "often"
    )
    found = {one["id"]: one for one in toril("schedulers", "list", "emails", "--json", *here).data}
    assert found["nightly"]["cron"] == "0 3 * * *" and found["nightly"]["data"] == {"n": 1}
    assert found["often"]["every"] == 3600
    shown = " ".join(toril("schedulers", "list", "emails", *here).out.split())
    assert "nightly" in shown and "jobs added" in shown and "time zone" in shown
    removed = toril("schedulers", "remove", "emails", "nightly", "--yes", "--json", *here).data
    assert removed == {"id": "nightly", "removed": True}
    assert toril("schedulers", "remove", "emails", "nightly", "-y", *here).out == "there was no nightly\n"


def test_a_scheduler_without_a_time_is_refused(toril: Toril, here: list[str]) -> None:
    assert toril("schedulers", "set", "emails", "never", *here).code == 2
