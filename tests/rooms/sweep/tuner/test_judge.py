"""What repeats prove, and what stays at default."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.recordings.ranks.costs import Class, Cost
from lab.rooms.sweep.effective import LOG, How
from lab.rooms.sweep.knobs import Knobs
from lab.rooms.sweep.tuner.judge import Observed, Ran, judge

NAME = Class("all_gather", 1 << 24, 8)
RING = How("ring", "simple", LOG)


def _ran(threads: int, channels: int, repeat: int, cost_ms: float, **changes) -> Ran:
    known = {
        "latency_us": 100.0,
        "blocks": True,
        "grid": channels,
        "block": 288,
        "kernel": "",
    }
    least = changes.pop("least_ms", cost_ms)
    cost = Cost(cost_ms=cost_ms, least_ms=least, **{**known, **changes.pop("cost", {})})
    ready = changes.pop("ready_ms", 20 + cost_ms)
    name = changes.pop("name", NAME)
    observed = Observed(cost, changes.pop("how_it_ran", RING))
    return Ran(
        Knobs(threads, channels, *changes.pop("how", ("", ""))), repeat, ready, 1, {name: observed}, ()
    )


def _runs(costs: dict[int, list[float]], **changes) -> list[Ran]:
    return [
        _ran(256, channels, repeat, cost, **dict(changes))
        for channels, row in costs.items()
        for repeat, cost in enumerate(row, start=1)
    ]


CLEAR = {28: [2.0, 2.1, 1.9], 42: [2.6, 2.7, 2.5], 56: [2.65, 2.7, 2.6]}


def test_what_is_best_alone_becomes_a_row():
    (one,) = judge(_runs(CLEAR)).decisions
    assert one.row is not None and one.row.text() == "allgather,8388608,33554432,ring,simple,28,1,8"
    assert one.reason.startswith("2.00 ms a step, other channels 2.60 to 2.65 ms")


def test_what_cannot_be_told_apart_is_left_at_default_and_named():
    (one,) = judge(_runs({28: [2.0, 2.3, 1.9], 42: [2.1, 2.0, 2.2]})).decisions
    assert one.row is None and one.looked and "28 channels and 42 channels cannot be told apart" in one.reason


def test_one_run_each_proves_nothing():
    (one,) = judge(_runs({28: [2.0], 42: [9.0]})).decisions
    assert one.row is None and "proves nothing (256t 28ch leads by 7.000 ms" in one.reason


@pytest.mark.parametrize(
    ("changes", "reason", "looked"),
    [
        ({"cost": {"grid": 24}}, "28 channels were requested and 24 used", True),
        ({"cost": {"grid": -1}}, "no grid", False),
        ({"cost": {"blocks": False}}, "leave it early", False),
        ({"cost": {"kernel": "gloo:all_gather"}}, "gloo has neither channels nor threads", True),
        ({"how_it_ran": How()}, "algorithm and protocol are unknown", False),
        ({"name": Class("all_to_all", 1 << 24, 8)}, "no such collective", True),
        ({"name": Class("all_gather", 0, 8)}, "calls are empty", True),
        ({"name": Class("all_gather", -1, 8)}, "size was not recorded", False),
    ],
)
def test_a_row_needs_all_its_evidence(changes, reason, looked):
    (one,) = judge(_runs(CLEAR, **changes)).decisions
    assert one.row is None and reason in one.reason and one.looked is looked


def test_a_run_without_a_replay_is_no_all_clear():
    runs = _runs(CLEAR)
    observed = runs[0].classes[NAME]
    lost = replace(
        runs[0], classes={NAME: replace(observed, cost=replace(observed.cost, cost_ms=float("nan")))}
    )
    found = judge([replace(lost, ready_ms=None), *runs[1:]])
    assert found.decisions[0].row is not None
    assert found.left_out == ("repeat 1 of 256t 28ch could not be replayed: left out of the judgement",)
    every = [
        replace(ran, classes={NAME: replace(observed, cost=replace(observed.cost, cost_ms=float("nan")))})
        for ran in runs
    ]
    (one,) = judge(every).decisions
    assert one.row is None and not one.looked and "could not be replayed" in one.reason


def test_a_setting_that_lacks_a_repeat_is_said():
    runs = [ran for ran in _runs(CLEAR) if (ran.knobs.channel, ran.repeat) != (42, 3)]
    (text,) = judge(runs).left_out
    assert text.startswith("256t 42ch has no repeat 3, which others have")


@pytest.mark.parametrize("used", [How("nvls", "simple", LOG), How("nvls/ring", "simple", LOG)])
def test_runs_of_several_algorithms_name_none(used):
    """Also calls of one run that ran differently: what most of them used is not what a row would set."""
    runs = _runs(CLEAR)
    other = replace(runs[1], classes={NAME: replace(runs[1].classes[NAME], choice=used)})
    (one,) = judge([runs[0], other, *runs[2:]]).decisions
    assert one.row is None and f"its runs used {used.algorithm} simple and ring simple" in one.reason


def test_both_ends_of_contention_must_agree():
    runs = [
        replace(ran, classes={NAME: replace(one, cost=replace(one.cost, least_ms=5 - one.cost.cost_ms))})
        for ran in _runs({28: CLEAR[28], 42: CLEAR[42]})
        for one in [ran.classes[NAME]]
    ]
    (one,) = judge(runs).decisions
    assert one.row is None and "does not tell which holds once no rank is late" in one.reason


def test_the_librarys_own_choice_may_be_best():
    (one,) = judge(_runs({0: CLEAR[28], 42: CLEAR[42]})).decisions
    assert one.row is None and one.looked and "own choice is best" in one.reason


def test_threads_are_told_by_the_step_and_only_if_proven():
    both = [
        _ran(threads, channels, repeat, 2.0, ready_ms=20 + slow + 0.01 * repeat)
        for threads, slow in ((256, 0.0), (512, 3.0))
        for channels in (28, 42)
        for repeat in (1, 2, 3)
    ]
    assert judge(both).threads == 256
    found = judge(
        [
            replace(ran, ready_ms=20.0 + (ran.repeat * ran.knobs.channel * ran.knobs.threads) % 7)
            for ran in both
        ]
    )
    assert found.threads is None and "cannot be told apart" in found.thread_reason


def test_settings_that_differ_in_threads_alone_do_not_hide_the_best_channels():
    runs = [
        _ran(threads, channels, repeat, cost + 0.01 * repeat)
        for threads in (256, 512)
        for channels, cost in ((28, 2.0), (42, 3.0))
        for repeat in (1, 2, 3)
    ]
    (one,) = judge(runs).decisions
    assert one.row is not None and one.row.channels == 28


HOW = {("ring", "simple"): 2.6, ("ring", "ll128"): 2.0, ("tree", "simple"): 2.7}


def _how_runs(name: Class = NAME, used: tuple[str, str] | None = None, **changes: object) -> list[Ran]:
    return [
        _ran(
            0,
            0,
            repeat,
            cost + 0.1 * repeat,
            how=how,
            name=name,
            how_it_ran=How(*(used or how), LOG),
            **changes,
        )
        for how, cost in HOW.items()
        for repeat in (1, 2, 3)
    ]


def test_the_best_algorithm_and_protocol_become_a_row_that_keeps_the_channels():
    (one,) = judge(_how_runs(Class("all_reduce", 1 << 24, 8))).decisions
    assert one.row is not None and one.row.text() == "allreduce,8388608,33554432,ring,ll128,-1,1,8"
    assert "other settings 2.80 to 2.90 ms" in one.reason


def test_what_an_algorithm_does_not_reach_is_one_setting_for_that_collective():
    # tree serves no all-gather, so its runs are further ones of `simple` and prove nothing about tree.
    runs = _how_runs()
    (one,) = judge(runs).decisions
    assert one.row is not None and (one.row.algorithm, one.row.protocol) == ("ring", "ll128")
    same = [ran for ran in runs if ran.knobs.algorithm == "tree"]
    same += [replace(ran, knobs=ran.knobs._replace(algorithm="")) for ran in same]
    (one,) = judge(same).decisions
    assert one.row is None and one.looked and "nothing that a row can set for it was varied" in one.reason


def test_a_request_that_was_not_followed_sets_nothing():
    (one,) = judge(_how_runs(Class("all_reduce", 1 << 24, 8), used=("ring", "simple"))).decisions
    assert one.row is None and one.looked and "ll128 was requested and simple used" in one.reason
