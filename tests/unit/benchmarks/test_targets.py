"""Which promises a run kept."""

from __future__ import annotations

from benchmarks.contenders import CONTENDERS
from benchmarks.figures import Summary
from benchmarks.targets import TARGETS, Target, decide_outcome, missed
from benchmarks.workloads import full_plan, quick_plan

FASTER = Target(title="faster", work="race", against=("node-5", "huey"), least=2.0)
SOONER = Target(title="sooner", work="wait", metric="started_p99", against=("node-5", "huey"), most=1.0)
SMALL = Target(title="small", work="race", metric="rss_mb", most=60)


def figures(**works: dict[str, dict[str, float]]) -> dict:
    return {
        work: {
            name.replace("_", "-"): {
                metric: Summary(value, value, value, 1) for metric, value in metrics.items()
            }
            for name, metrics in contenders.items()
        }
        for work, contenders in works.items()
    }


def test_a_ratio_is_taken_to_the_best_of_the_rivals() -> None:
    race = {"toril": {"rate": 100.0}, "node_5": {"rate": 40.0}, "huey": {"rate": 60.0}}
    (ack_error,) = decide_outcome(figures(race=race), [FASTER])
    assert ack_error.rival == "huey"
    assert not ack_error.kept
    assert missed([ack_error]) == ["faster: 1.67, wanted ≥ 2 ×"]


def test_of_waiting_the_shortest_is_the_best() -> None:
    wait = {"toril": {"started_p99": 2.0}, "node_5": {"started_p99": 2.5}, "huey": {"started_p99": 9.0}}
    (ack_error,) = decide_outcome(figures(wait=wait), [SOONER])
    assert (ack_error.rival, ack_error.figure, ack_error.kept) == ("node-5", 0.8, True)


def test_a_figure_on_its_bound_is_kept() -> None:
    (ack_error,) = decide_outcome(figures(race={"toril": {"rss_mb": 60.0}}), [SMALL])
    assert ack_error.kept


def test_what_should_have_been_measured_and_was_not_is_missed() -> None:
    (ack_error,) = decide_outcome(figures(race={"toril": {"rate": 100.0}}), [FASTER])
    assert missed([ack_error]) == ["faster: not measured, wanted ≥ 2 ×"]
    (ack_error,) = decide_outcome({"race": {}}, [SMALL])
    assert not ack_error.kept


def test_works_that_were_not_asked_for_are_not_missed() -> None:
    assert decide_outcome(figures(other={"toril": {"rate": 1.0}}), [FASTER, SMALL]) == []


def test_every_target_is_about_a_work_and_rivals_that_exist() -> None:
    plans = {work.name: work for plan in (quick_plan(), full_plan()) for work in plan}
    for target in TARGETS:
        work = plans[target.work]
        assert target.ours in work.contenders
        assert all(name in CONTENDERS for name in target.against)
        assert not target.against or set(target.against) & set(work.contenders)


def test_the_quick_plan_can_judge_all_that_is_promised_of_the_engine() -> None:
    quick = {work.name for work in quick_plan()}
    assert {target.work for target in TARGETS} - quick == {"list", "stream"}
