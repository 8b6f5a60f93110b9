"""Which promises a run kept."""

from __future__ import annotations

from benchmarks.contenders import CONTENDERS
from benchmarks.figures import Summary
from benchmarks.targets import TARGETS, Results, Target, check_targets, missed
from benchmarks.workloads import full_plan, quick_plan

FASTER = Target(title="faster", workload="race", against=("node-5", "huey"), least=2.0)
SOONER = Target(title="sooner", workload="wait", metric="started_p99", against=("node-5", "huey"), most=1.0)
SMALL = Target(title="small", workload="race", metric="rss_mb", most=60)


def figures(**works: dict[str, dict[str, float]]) -> Results:
    return {
        workload: {
            name.replace("_", "-"): {
                metric: Summary(value, value, value, 1) for metric, value in metrics.items()
            }
            for name, metrics in contenders.items()
        }
        for workload, contenders in works.items()
    }


def test_a_ratio_is_taken_to_the_best_of_the_rivals() -> None:
    race = {"toril": {"rate": 100.0}, "node_5": {"rate": 40.0}, "huey": {"rate": 60.0}}
    (verdict,) = check_targets(figures(race=race), [FASTER])
    assert verdict.rival == "huey"
    assert not verdict.met
    assert missed([verdict]) == ["faster: 1.67, wanted ≥ 2 ×"]


def test_of_waiting_the_shortest_is_the_best() -> None:
    wait = {"toril": {"started_p99": 2.0}, "node_5": {"started_p99": 2.5}, "huey": {"started_p99": 9.0}}
    (verdict,) = check_targets(figures(wait=wait), [SOONER])
    assert (verdict.rival, verdict.figure, verdict.met) == ("node-5", 0.8, True)


def test_a_figure_on_its_bound_is_kept() -> None:
    (verdict,) = check_targets(figures(race={"toril": {"rss_mb": 60.0}}), [SMALL])
    assert verdict.met


def test_what_should_have_been_measured_and_was_not_is_missed() -> None:
    (verdict,) = check_targets(figures(race={"toril": {"rate": 100.0}}), [FASTER])
    assert missed([verdict]) == ["faster: not measured, wanted ≥ 2 ×"]
    (verdict,) = check_targets({"race": {}}, [SMALL])
    assert not verdict.met


def test_works_that_were_not_asked_for_are_not_missed() -> None:
    assert check_targets(figures(other={"toril": {"rate": 1.0}}), [FASTER, SMALL]) == []


def test_every_target_is_about_a_work_and_rivals_that_exist() -> None:
    plans = {workload.name: workload for plan in (quick_plan(), full_plan()) for workload in plan}
    for target in TARGETS:
        workload = plans[target.workload]
        assert target.ours in workload.contenders
        assert all(name in CONTENDERS for name in target.against)
        assert not target.against or set(target.against) & set(workload.contenders)


def test_the_quick_plan_can_judge_all_that_is_promised_of_the_engine() -> None:
    quick = {workload.name for workload in quick_plan()}
    only_full = {"list", "stream", "list-everysec", "stream-everysec", "process-100-always"}
    assert {target.workload for target in TARGETS} - quick == only_full


def test_every_promised_work_runs_without_persistence_and_with_a_file() -> None:
    for plan in (quick_plan(), full_plan()):
        names = {workload.name for workload in plan}
        promised = {target.workload for target in TARGETS} & names
        bare = {name.removesuffix("-everysec").removesuffix("-always") for name in promised}
        assert bare | {f"{name}-everysec" for name in bare} <= names


def test_a_target_for_a_server_with_a_file_has_its_own_bound() -> None:
    slower = FASTER.with_file("everysec", 1.5)
    assert (slower.workload, slower.bound, slower.title) == ("race-everysec", "≥ 1.5 ×", "faster, everysec")
    assert SOONER.with_file("always").bound == SOONER.bound
    assert SOONER.with_file("always", 2).bound == "≤ 2 ×"
