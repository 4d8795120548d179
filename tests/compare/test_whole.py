"""The whole: slow steps among fast ones, what is said of which statistic, and that diff and check agree."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from lab.compare.check import judge
from lab.compare.cli import check
from lab.compare.diff.comparison import compare_pair
from lab.compare.whole import (
    FIRST,
    IDLE,
    KERNELS,
    MEAN,
    MEDIAN,
    OWN,
    SPAN,
    TAIL,
    carried_by_steps,
    excess,
    judge_totals,
    numbered,
    outcome_of,
    statistic_of,
    whole_words,
)
from lab.errors import BadDataError
from tests.compare.made import NOTHING, Plant, Program, as_sample
from tests.conftest import SHARED

CASES = SHARED / "cases" / "compare"
cases = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
RNG_SEED = 5


def side(count, steps=20, slow=lambda step: 1.0, between=0.004, seed=1):
    """Processes with the times of their steps, 10 ms each."""
    rng = np.random.default_rng(seed)
    factors = np.array([slow(step) for step in range(steps)])
    return [
        {OWN: 1e7 * np.exp(rng.normal(0, between)) * np.exp(rng.normal(0, 0.01, steps)) * factors}
        for _ in range(count)
    ]


def outcomes(totals):
    return {total.statistic: total.outcome for total in totals}


def test_a_few_slow_steps_are_a_slower_mean_and_tail_and_not_a_slower_median():
    base = side(12)
    totals = judge_totals(base, side(12, slow=lambda s: 10 if s % 5 == 4 else 1, seed=2), 0.02)
    assert outcomes(totals) == {MEAN: "regression", MEDIAN: "excluded", TAIL: "regression", FIRST: "apart"}
    assert outcome_of(totals) == "regression" and whole_words(totals, 0.02)[0].endswith("proven.")
    mean = next(total for total in totals if total.statistic == MEAN)
    assert mean.change == pytest.approx(1.89, abs=0.02) and mean.low < mean.change < mean.high
    two = judge_totals(
        side(12, 100, seed=3), side(12, 100, slow=lambda s: 30 if s in (31, 81) else 1, seed=4), 0.02
    )
    assert outcomes(two) == {MEAN: "regression", MEDIAN: "excluded", TAIL: "excluded", FIRST: "apart"}


def test_the_first_step_stands_apart():
    totals = judge_totals(side(12), side(12, slow=lambda s: 30 if s == 0 else 1, seed=2), 0.02)
    assert outcomes(totals) == {MEAN: "excluded", MEDIAN: "excluded", TAIL: "excluded", FIRST: "apart"}
    first = next(total for total in totals if total.statistic == FIRST)
    assert first.change == pytest.approx(29, abs=0.6) and outcome_of(totals) == "excluded"


@pytest.mark.parametrize(
    ("steps", "statistics"),
    [
        (1, [MEAN]),
        (2, [MEAN, FIRST]),
        (4, [MEAN, MEDIAN, FIRST]),
        (19, [MEAN, MEDIAN, FIRST]),
        (20, [MEAN, MEDIAN, TAIL, FIRST]),
    ],
)
def test_what_few_steps_cannot_tell_is_not_tested_and_that_is_said(steps, statistics):
    totals = judge_totals(side(6, steps), side(6, steps, seed=2), 0.05)
    assert [total.statistic for total in totals] == statistics
    (words,) = whole_words(totals, 0.05)
    assert words.startswith("A slowdown beyond 5.0% is excluded, of the mean step")
    assert ("a tail needs 20 steps per process" in words) == (TAIL not in statistics)
    assert ("and of the tail (p95)" in words) == (TAIL in statistics)


def test_where_the_mean_is_open_the_median_is_excluded_by_its_name():
    """A tenth of the steps is longer by chance, on both sides alike."""
    rng = np.random.default_rng(11)
    sides = [
        [{OWN: 1e7 * (1 + (rng.random(40) < 0.1) * rng.exponential(2.0, 40))} for _ in range(12)]
        for _ in range(2)
    ]
    for processes in sides:
        for process in processes:
            process[OWN] *= np.exp(rng.normal(0, 0.004))
    totals = judge_totals(*sides, 0.02)
    assert outcome_of(totals) == "undecided"
    lines = whole_words(totals, 0.02)
    assert lines[0].startswith("Cannot tell whether HEAD is slower by more than 2.0%")
    assert lines[1].startswith("Excluded of the median alone")


def test_statistics_leave_the_first_step_out_where_there_are_several():
    times = np.array([9.0, 1.0, 2.0, 3.0, 10.0])
    assert statistic_of(times, MEAN) == 4.0 and statistic_of(times, MEDIAN) == 2.5
    assert statistic_of(times, FIRST) == 9.0 and statistic_of(times, TAIL) == pytest.approx(8.95)
    assert statistic_of(times[:1], MEAN) == 9.0


def test_idle_time_is_a_share_of_the_step_and_its_growth_is_found():
    def processes(idle_ns, seed):
        rng = np.random.default_rng(seed)
        found = []
        for _ in range(6):
            idle = np.full(8, idle_ns) * np.exp(rng.normal(0, 0.01, 8))
            kernels = 9e6 * np.exp(rng.normal(0, 0.001, 8))
            found.append({KERNELS: kernels, SPAN: kernels + idle, IDLE: idle})
        return found

    totals = judge_totals(processes(1e5, 1), processes(6e5, 2), 0.02)
    by_name = {(total.name, total.statistic): total for total in totals}
    idle = by_name[IDLE, MEAN]
    assert idle.outcome == "regression" and idle.change == pytest.approx(5e5 / 9.1e6, rel=0.02)
    assert (idle.base_ns, idle.head_ns) == (pytest.approx(1e5, rel=0.02), pytest.approx(6e5, rel=0.02))
    assert by_name[KERNELS, MEAN].outcome == "excluded" and by_name[SPAN, MEAN].outcome == "regression"
    same = judge_totals(processes(1e5, 1), processes(1e5, 3), 0.02)
    assert outcome_of(same) == "excluded"


def test_a_change_of_rounding_is_no_change_and_a_process_without_time_is_an_error():
    base, head = ([{OWN: np.full(5, 1e7 + shift)}] * 4 for shift in (0.0, 2.0))
    assert not any(total.differs for total in judge_totals(base, head, 0.0))
    least = [{OWN: np.full(5, 1.0008e7)}] * 4
    assert not any(total.differs for total in judge_totals(base, least, 0.0))
    slower = [{OWN: np.full(5, 1.0015e7)}] * 4
    assert outcome_of(judge_totals(base, slower, 0.0)) == "regression"
    with pytest.raises(BadDataError, match="a process without any step time"):
        judge_totals(base, [{OWN: np.zeros(5)}] * 4, 0.0)


def test_the_values_beside_a_change_say_the_same():
    """One slow process makes the arithmetic mean of a side larger, and the change that is tested smaller."""
    base, head = ([{OWN: np.full(1, 1e6 * ms)} for ms in side] for side in ((12, 12, 12), (5, 8, 27)))
    (total,) = judge_totals(base, head, 0.02)
    assert total.change < 0 and total.head_ns / total.base_ns - 1 == pytest.approx(total.change)


def test_which_steps_carry_the_change():
    head = side(3, slow=lambda s: 10 if s % 5 == 4 else 1, seed=2)
    text = carried_by_steps(side(3), head, OWN)
    assert text == (
        "step time: 21% of HEAD's steps carry the change of the mean: steps 4, 9, 14, 19, every 5th (from 0)"
    )
    assert carried_by_steps(head, side(3), OWN).startswith("step time: 21% of BASE's steps")
    assert carried_by_steps(side(3), side(3, slow=lambda _: 1.5, seed=2), OWN) == ""


def test_a_step_unlike_the_others_is_so_by_its_size_and_by_their_scatter():
    def unlike(*steps):
        return excess(np.array(steps))[0].tolist()

    assert unlike(10.0, 10.1, 9.9, 10.0, 30.0) == [False] * 4 + [True]
    assert not any(unlike(10.0, 12.0, 8.0, 11.0, 9.0))
    assert [unlike(*[100.0] * 9, last)[-1] for last in (104.0, 106.0)] == [False, True]
    scattered = [100.0, 99.0, 101.0] * 4  # a robust deviation of 1.48
    assert [unlike(*scattered, last)[-1] for last in (111.0, 113.0)] == [False, True]
    assert numbered([25]) == "step 25" and numbered([1, 2, 4]) == "steps 1, 2, 4"
    assert numbered([1, 4, 7]) == "steps 1, 4, 7, every 3rd"
    assert numbered(range(2, 18, 2)) == "steps 2, 4, 6, 8, 10, 12 and 2 more, every 2nd"


@pytest.mark.parametrize("kind", ["normal", "exponential", "lognormal", "rare long steps"])
def test_of_equal_sides_hardly_any_is_called_slower(kind):
    rng, slower = np.random.default_rng(RNG_SEED), 0
    for _ in range(120):
        sides = [[{OWN: drawn(rng, kind)} for _ in range(6)] for _ in range(2)]
        slower += outcome_of(judge_totals(*sides, 0.0)) == "regression"
    assert slower <= 2


def drawn(rng, kind):
    own = np.exp(rng.normal(0, 0.01))
    if kind == "normal":
        return 1e7 * own * (1 + rng.normal(0, 0.02, 20))
    if kind == "exponential":
        return 1e7 * own * (1 + rng.exponential(0.3, 20))
    if kind == "lognormal":
        return 1e7 * own * rng.lognormal(0, 0.5, 20)
    return 1e7 * own * np.where(rng.random(20) < 0.05, 20.0, 1.0) * (1 + rng.normal(0, 0.01, 20))


def test_diff_and_check_do_not_contradict_each_other(tmp_path):
    """200 pairs of three processes per side, equal ones and planted ones of all kinds."""
    rng = np.random.default_rng(RNG_SEED)
    programs = [Program(tmp_path, steps) for steps in (6, 24)]
    plants = [
        NOTHING,
        Plant(factor=1.02),
        Plant(factor=1.06),
        Plant(kernels=((11, 1.08), (3, 0.7))),
        Plant(every=5, every_factor=3.0),
        Plant(idle_us=40.0),
        Plant(idle_us=12.0, kernels=((10, 1.03),)),
        Plant(factor=0.95),
    ]
    proven = excluded = 0
    for pair in range(200):
        program, plant = programs[pair % 2], plants[pair % len(plants)]
        sides = [
            [program.draw(rng, with_plant, each=0.002, idle_us=10) for _ in range(3)]
            for with_plant in (NOTHING, plant)
        ]
        comparison = compare_pair(sides[0][0], sides[1][0], sides[0][1:], sides[1][1:]).comparison
        samples = [[as_sample(work) for work in processes] for processes in sides]
        limit = (0.0, 0.02, 0.2)[pair % 3]
        verdict = judge(*samples, limit)
        if verdict.outcome == "regression":
            proven += 1
            assert comparison.findings, (pair, plant, verdict)
        by_key = {(total.name, total.statistic): total for total in comparison.totals}
        for total in verdict.metrics:
            own = by_key[total.name, total.statistic]
            assert (total.change, total.low, total.high) == (own.change, own.low, own.high)
            assert total.outcome != "regression" or own.outcome == "regression"
            assert total.outcome != "excluded" or own.low < limit or not own.differs
        excluded += verdict.outcome == "excluded"
        if plant is NOTHING:
            assert verdict.outcome != "regression"
    assert proven > 60 and excluded > 10


def run(base, head, *words):
    return CliRunner().invoke(
        check, [str(CASES / "gate" / base), str(CASES / "gate" / head), *words, "--json"]
    )


@cases
@pytest.mark.parametrize(
    ("base", "head", "words", "code"),
    [
        ("base", "head_every5th", (), 1),
        ("gc_base", "gc_head", (), 1),
        ("base", "head_first_only", (), 0),
        ("base", "head_equal", (), 0),
        ("jitter_a", "jitter_b", (), 3),
        ("base", "head_slow_120", ("--max-slowdown", "150%"), 0),
        ("base", "head_slow_120", ("--max-slowdown", "100%"), 1),
        ("coarse_base", "coarse_head", (), 0),
        ("trace_base", "trace_equal", (), 0),
        ("trace_base", "trace_every4th", (), 1),
        ("trace_base", "trace_idle4th", (), 1),
    ],
)
def test_the_cases_of_the_gate(base, head, words, code):
    truth = json.loads((CASES / "truth.json").read_text())
    done = run(base, head, *words)
    assert done.exit_code == code, done.output
    verdict = json.loads(done.stdout)
    assert verdict["doubts"] == []
    for total in verdict["metrics"]:
        if (total["name"], total["statistic"]) == (OWN, MEAN):
            for side, ns in ((base, total["base_ns"]), (head, total["head_ns"])):
                mean_ms = truth[f"gate/{side}"]["mean_without_first_ms"]
                assert 0.98 * mean_ms < ns / 1e6 < 1.0001 * mean_ms  # a geometric mean over processes
    whole = outcome_of_json(verdict)
    assert (whole == "regression") == (code == 1)


def outcome_of_json(verdict):
    found = {total["outcome"] for total in verdict["metrics"]} - {"apart"}
    return "regression" if "regression" in found else "excluded" if found == {"excluded"} else "undecided"
