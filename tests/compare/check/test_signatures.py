"""The gate by signature: a slow kernel is named alone, equal processes are not, nothing is left unsaid."""

from __future__ import annotations

import numpy as np
import pytest

from lab.compare.check.floors import Floors, by_signature, floor_of, of_processes, unlike
from lab.compare.check.gate import SPAN, judge, sentences
from lab.compare.check.repeat import LOOKS
from lab.compare.check.samples import METRICS, Process
from lab.compare.check.signatures import EXCLUDED, UNDECIDED, UNSURE, judge_signatures, quickly
from lab.compare.check.signatures import sentences as words
from lab.stats.gate import LEVEL, decide

# Fifty signatures of a step of 3 ms, from 1 to 400 us, as on the H200 of the shared recordings.
SIZES_NS = np.geomspace(1e3, 4e5, 50)
KEYS = [(f"aten::op{at}", "[[8]]", "['float']", f"kernel_{at}") for at in range(50)]


def drawn(generator, count, spread, slow=(), common=0.002):
    """`count` processes; `spread` (s,) of each signature, `common` to all; `slow`: (signature, factor)."""
    found = []
    for _ in range(count):
        ns = SIZES_NS * generator.lognormal(0, common) * generator.lognormal(0, spread, len(SIZES_NS))
        for at, factor in slow:
            ns[at] *= factor
        times = dict(zip(METRICS.values(), (ns.sum(), 1.1 * ns.sum()), strict=True))
        found.append(Process(times, {}, dict(zip(KEYS, ns.tolist(), strict=True)), steps=8))
    return found


def gate(base, head, allowed, floors=None):
    """As `lab check -- CMD` looks: (verdict, processes a side)."""
    for n in LOOKS:
        found = judge(base[:n], head[:n], allowed, looks=len(LOOKS), floors=floors)
        if found.outcome != "undecided":
            break
    return found, n


def floors_of(generator, spread, common=0.002):
    return of_processes(drawn(generator, 8, spread, common=common), {"host": "here"}, {"command": "x"})


@pytest.mark.parametrize(("spread", "with_floors"), [(0.002, True), (0.02, False), (0.09, True)])
def test_of_a_hundred_equal_checks_at_most_one_calls_anything_slower(spread, with_floors):
    """Short kernels scatter ten times as much; the allowed slowdown is 0, so every alarm is false."""
    generator = np.random.default_rng(int(spread * 1e4))
    spreads = spread * np.where(SIZES_NS < 5e3, 10, 1).clip(max=0.2 / spread)
    wrong = 0
    for _ in range(100):
        floors = floors_of(generator, spreads) if with_floors else None
        sides = drawn(generator, 12, spreads), drawn(generator, 12, spreads)
        wrong += gate(*sides, 0.0, floors)[0].outcome == "regression"
    assert wrong <= 1


def test_one_kernel_of_seven_percent_of_the_step_five_percent_slower_is_named_alone():
    """The step grows by 0.35 %, which no time of the step proves."""
    generator = np.random.default_rng(5)
    named, wrong, looks = 0, 0, []
    for _ in range(50):
        floors = floors_of(generator, 0.003)
        sides = drawn(generator, 12, 0.003), drawn(generator, 12, 0.003, slow=[(45, 1.05)])
        verdict, n = gate(*sides, 0.02, floors)
        slower = [one.op for one in verdict.signatures.slower]
        named += slower == ["aten::op45"]
        wrong += any(one != "aten::op45" for one in slower)
        looks.append(n)
        assert "regression" not in {one.outcome for one in verdict.metrics}
    assert named >= 49 and wrong == 0 and sum(n <= 6 for n in looks) >= 45


# The limit of each, of a step that is a tenth longer than its kernels: 2 %, and 0.1 % of the step at least.
LIMITS = np.maximum(0.02, 0.0011 * SIZES_NS.sum() / SIZES_NS)
LONG = range(20, 50)


def test_of_many_slower_ones_more_are_proven_than_each_at_the_level_of_all():
    """Thirty of fifty are slower by as much as six processes just show."""
    generator = np.random.default_rng(12)
    planted = [(at, 1.025 + LIMITS[at]) for at in LONG]
    by_holm, by_interval, wrong = 0, 0, 0
    for _ in range(30):
        base = drawn(generator, 6, 0.005, common=0.0)
        found = judge(base, drawn(generator, 6, 0.005, slow=planted, common=0.0), 0.02).signatures
        by_holm += len(found.slower)
        by_interval += sum(one.low > one.limit for one in found.slower)
        wrong += any(one.op in {f"aten::op{at}" for at in range(20)} for one in found.slower)
        assert {one.outcome for one in found.slower} <= {"regression"}
        holms = sum("proven in order with the others" in one for one in words(found))
        assert holms == sum(one.low <= one.limit for one in found.slower)
        assert found.tested == found.excluded + found.undecided + len(found.slower)
    assert by_holm > 1.1 * by_interval > 0 and wrong == 0


@pytest.mark.parametrize("beyond", [0, 15])
def test_of_those_that_are_slower_by_just_what_is_allowed_hardly_a_check_names_one(beyond):
    """The worst case of the promise: `beyond` are far slower, the others exactly at their limits."""
    generator = np.random.default_rng(13 + beyond)
    far, near = LONG[:beyond], LONG[beyond:]
    slow = [*((at, 3.0) for at in far), *((at, 1 + LIMITS[at]) for at in near)]
    allowed, wrong = {f"aten::op{at}" for at in near}, 0
    for _ in range(200):
        a, b = (drawn(generator, 5, 0.003, slow=one, common=0.0) for one in ([], slow))
        found = judge(a, b, 0.02).signatures
        wrong += any(one.op in allowed for one in found.slower)
        assert sum(one.change > 1 for one in found.slower) == beyond
    assert wrong <= 2  # half a check is expected at most


@pytest.mark.parametrize("measured", [True, False])
def test_of_a_hundred_equal_checks_at_most_one_calls_a_count_exact(measured):
    """Four calls that come or not by chance in each process, as a cache that is full or not: three processes
    a side agree on each of them, and on the other value on the other side, in 3 % of checks."""
    generator = np.random.default_rng(21)
    names = [f"call{at}" for at in range(4)]

    def side(count):
        draws = generator.integers(1, 3, (count, 4))
        return [Process({"step time": 1e7}, dict(zip(names, one.tolist(), strict=True))) for one in draws]

    exact, maybe = 0, 0
    for _ in range(400):
        floors = of_processes(side(8), {}, {}) if measured else None
        base, head = side(12), side(12)
        for n in LOOKS:
            found = judge(base[:n], head[:n], 0.02, looks=len(LOOKS), floors=floors)
            exact, maybe = exact + bool(found.exact), maybe + bool(found.by_chance)
    assert exact <= 4 and maybe > 20


def test_a_further_wait_in_every_process_is_exact_once_chance_is_excluded():
    def side(count, waits):
        return [Process({"step time": 1e7}, {"cudaDeviceSynchronize": waits, "gemm": 4.0})] * count

    found = judge(side(3, 1.0), side(3, 2.0), 0.02)
    assert found.exact == [] and found.by_chance == ["cudaDeviceSynchronize: 1 -> 2 per step"]
    assert any("by chance in up to 3.1%" in one for one in sentences(found))
    assert judge(side(4, 1.0), side(4, 2.0), 0.02).exact == ["cudaDeviceSynchronize: 1 -> 2 per step"]
    floors = of_processes(side(8, 1.0), {}, {})
    assert judge(side(3, 1.0), side(3, 2.0), 0.02, floors=floors).by_chance == []


def test_a_gain_is_told_by_the_same_rule_and_does_not_hide_a_loss():
    generator = np.random.default_rng(6)
    base, head = drawn(generator, 6, 0.002), drawn(generator, 6, 0.002, slow=[(49, 0.7), (44, 1.2)])
    found = judge(base, head, 0.02)
    assert found.outcome == "regression"
    assert [one.op for one in found.signatures.slower] == ["aten::op44"]
    assert [one.op for one in found.signatures.faster] == ["aten::op49"]
    text = "\n".join(sentences(found))
    assert text.startswith(
        "Parts of HEAD's step are slower: proven; of the step as a whole a slowdown is not."
    )
    assert "Faster: aten::op49" in text and "faster: proven" in text


def test_what_costs_less_than_a_thousandth_of_the_step_is_no_finding():
    generator = np.random.default_rng(7)
    base, head = drawn(generator, 6, 0.001), drawn(generator, 6, 0.001, slow=[(0, 1.9), (3, 1.5)])
    found = judge(base, head, 0.02)
    assert found.outcome == "excluded" and found.signatures.slower == [] and found.signatures.tested == 50


def test_a_floor_widens_what_agrees_by_luck():
    """Three processes a side that agree to 0.01 %, of a workload whose equal processes differ by 4 %."""
    base = [Process({"step time": 1e7 * (1 + 1e-4 * at)}, {}, steps=9) for at in range(3)]
    head = [Process({"step time": 1.03e7 * (1 + 1e-4 * at)}, {}, steps=9) for at in range(3)]
    aa = [Process({"step time": 1e7 * (1 + 0.04 * (-1) ** at)}, {}, steps=9) for at in range(8)]
    floors = of_processes(aa, {}, {})
    assert judge(base, head, 0.02).outcome == "regression"
    found = judge(base, head, 0.02, floors=floors)
    assert found.outcome == "undecided" and judge(head, head, 0.02, floors=floors).outcome == "undecided"
    (metric,) = found.metrics
    logs = np.log([1e7 * (1 + 0.04 * (-1) ** at) for at in range(8)])
    assert metric.floor == pytest.approx(3.4995 * logs.std(ddof=1) * np.sqrt(2 / 3), rel=1e-4)  # t, 7 degrees
    assert np.log1p(metric.high) - np.log1p(metric.change) == pytest.approx(metric.floor)
    assert f"A/A floor {metric.floor:.1%}" in "\n".join(sentences(found))


def test_floors_keep_a_program_with_two_speeds_from_false_alarms_and_without_them_the_risk_is_said():
    """Half of the processes are 8 % slower, as under another clock: equal sides, split by chance."""
    generator = np.random.default_rng(23)

    def side(count):
        times = 1e7 * (1 + 0.08 * generator.integers(0, 2, count)) * generator.lognormal(0, 0.001, count)
        return [Process({"step time": one}, {}, steps=9) for one in times]

    wrong, alarms = 0, 0
    for _ in range(400):
        floors, sides = of_processes(side(8), {}, {}), (side(12), side(12))
        wrong += gate(*sides, 0.02, floors)[0].outcome == "regression"
        alarms += gate(*sides, 0.02)[0].outcome == "regression"
    assert wrong == 0 and alarms > 4
    three, four = (judge(side(n), side(n), 0.02).floors_words for n in (3, 4))
    assert "with two speeds is called slower by chance in up to 1.6% of checks" in three
    assert "two speeds" not in four


def test_what_is_quickly_sure_is_what_the_whole_decision_says():
    generator = np.random.default_rng(8)
    seen = set()
    for n, m in ((3, 3), (4, 6), (12, 12)):
        spread = generator.uniform(0, 0.05, 50)
        base, head = (
            drawn(generator, n, spread),
            drawn(generator, m, spread, slow=[(at, 1.04) for at in range(20)]),
        )
        a, b = (np.array([[one.signatures_ns[key] for key in KEYS] for one in side]) for side in (base, head))
        limits, floors = generator.uniform(0, 0.2, 50), generator.uniform(0, 0.05, 50)
        sure, high = quickly(a, b, limits, floors, LEVEL)
        for at in range(50):
            one = decide(a[:, at], b[:, at], limits[at], level=0.9999, floor=floors[at], excluding=LEVEL)
            by_itself = decide(a[:, at], b[:, at], limits[at], level=LEVEL, floor=floors[at])
            assert (
                sure[at] == UNSURE
                or one["outcome"] == {EXCLUDED: "excluded", UNDECIDED: "undecided"}[sure[at]]
            )
            assert sure[at] == UNSURE or min(one["p_slower"], one["p_faster"]) > (1 - LEVEL) / 2
            assert np.log1p(by_itself["high"]) <= high[at] * (1 + 1e-9)
        seen |= set(sure.tolist())
    assert seen == {UNSURE, EXCLUDED, UNDECIDED}


def judged(base, head, **more):
    given = {"alarms": 0.005, "looks": 1, "step_ns": 1e6, "kept": {}, **more}
    return judge_signatures(base, head, 0.02, **given)


def test_signatures_that_are_not_in_every_process_are_counted_by_their_share():
    generator = np.random.default_rng(9)
    base, head = drawn(generator, 3, 0.001), drawn(generator, 3, 0.001)
    del head[1].signatures_ns[KEYS[49]]
    base[0].signatures_ns[KEYS[3]] = 0.0
    found = judged(base, head)
    gone = SIZES_NS[[3, 49]].sum() / SIZES_NS.sum()
    assert found.tested == 48 and found.share == pytest.approx(1 - gone, abs=0.002)
    for one in head:
        one.signatures_ns.clear()
    verdict = judge(base, head, 0.02)
    assert verdict.signatures.tested == 0 and "so none is compared" in "\n".join(sentences(verdict))
    assert verdict.outcome == "undecided" and "no signature is in every process" in verdict.doubts[0]


def test_signatures_without_an_a_a_floor_are_counted():
    generator = np.random.default_rng(10)
    floors = floors_of(generator, 0.003)
    del floors.signatures[10:]
    found = judged(drawn(generator, 3, 0.003), drawn(generator, 3, 0.003), kept=by_signature(floors))
    assert (found.tested, found.with_floor) == (50, 10)


def test_floors_of_another_amount_of_work_are_said_and_not_used():
    generator = np.random.default_rng(11)
    floors, base = floors_of(generator, 0.003), drawn(generator, 3, 0.003)
    assert unlike(floors, base) == ""
    for one in base:
        one.times_ns[SPAN] *= 2
    found = judge(base, base, 0.02, floors=floors)
    assert found.floors is None and "of other work, or of another state of this machine" in found.floors_words
    assert isinstance(floors, Floors) and floor_of([1.0, 2.0], 3, 3) is None


def test_a_machine_whose_floors_are_wide_keeps_them_though_its_times_wander():
    """Else the noisiest machines would judge without floors."""
    aa = [Process({"step time": 1e7 * 2.0 ** (at % 4)}, {}, steps=9) for at in range(8)]
    base = [Process({"step time": 6e7 * (1 + at / 100)}, {}, steps=9) for at in range(3)]
    assert unlike(of_processes(aa, {}, {}), base) == ""
    assert unlike(of_processes(base, {}, {}), aa).startswith("step time of BASE was 60.6 ms then")
