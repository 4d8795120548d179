"""The gate by signature: a slow kernel is named alone, equal processes are not, nothing is left unsaid."""

from __future__ import annotations

import numpy as np
import pytest

from lab.compare.check import LOOKS, SHARES, judge, sentences
from lab.compare.check.samples import Process
from lab.compare.signatures import judge_signatures
from lab.compare.signatures import sentences as words
from lab.compare.whole import IDLE, KERNELS, OWN, SPAN

# Fifty signatures of a step of 3 ms, from 1 to 400 us, as on the H200 of the shared recordings.
SIZES_NS = np.geomspace(1e3, 4e5, 50)
TEN_MS = {OWN: np.full(8, 1e7)}
KEYS = [(f"aten::op{at}", "[[8]]", "['float']", f"kernel_{at}") for at in range(50)]


def drawn(generator, count, spread, slow=(), common=0.002):
    """`count` processes; `spread` (s,) of each signature, `common` to all; `slow`: (signature, factor)."""
    found = []
    for _ in range(count):
        ns = SIZES_NS * generator.lognormal(0, common) * generator.lognormal(0, spread, len(SIZES_NS))
        for at, factor in slow:
            ns[at] *= factor
        times = {
            name: np.full(8, share * ns.sum()) for name, share in ((KERNELS, 1), (SPAN, 1.1), (IDLE, 0.1))
        }
        found.append(Process(times, {}, dict(zip(KEYS, ns.tolist(), strict=True))))
    return found


def gate(base, head, allowed):
    """As `lab check -- CMD` looks: (verdict, processes a side)."""
    for n in LOOKS:
        found = judge(base[:n], head[:n], allowed, share=SHARES[n])
        if found.outcome != "undecided":
            break
    return found, n


@pytest.mark.parametrize("spread", [0.002, 0.09])
def test_of_fifty_equal_checks_at_most_one_calls_anything_slower(spread):
    """Short kernels scatter ten times as much; the allowed slowdown is 0, so every alarm is false."""
    generator = np.random.default_rng(int(spread * 1e4))
    spreads = spread * np.where(SIZES_NS < 5e3, 10, 1).clip(max=0.2 / spread)
    wrong = 0
    for _ in range(50):
        sides = drawn(generator, 12, spreads), drawn(generator, 12, spreads)
        wrong += gate(*sides, 0.0)[0].outcome == "regression"
    assert wrong <= 1


def test_one_kernel_of_seven_percent_of_the_step_five_percent_slower_is_named_alone():
    """The step grows by 0.35 %, which no time of the step proves."""
    generator = np.random.default_rng(5)
    named, wrong, looks = 0, 0, []
    for _ in range(20):
        sides = drawn(generator, 12, 0.003), drawn(generator, 12, 0.003, slow=[(45, 1.05)])
        verdict, n = gate(*sides, 0.02)
        slower = [one.op for one in verdict.signatures.slower]
        named += slower == ["aten::op45"]
        wrong += any(one != "aten::op45" for one in slower)
        looks.append(n)
        assert "regression" not in {one.outcome for one in verdict.metrics}
    assert named >= 19 and wrong == 0 and sum(n <= 6 for n in looks) >= 17


# The limit of each, of a step that is a tenth longer than its kernels: 2 %, and 0.1 % of the step at least.
LIMITS = np.maximum(0.02, 0.0011 * SIZES_NS.sum() / SIZES_NS)
LONG = range(20, 50)


def test_of_many_slower_ones_more_are_proven_than_each_at_the_level_of_all():
    """Thirty of fifty are slower by as much as six processes just show."""
    generator = np.random.default_rng(12)
    planted = [(at, 1.025 + LIMITS[at]) for at in LONG]
    by_holm, by_interval, wrong = 0, 0, 0
    for _ in range(12):
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
    for _ in range(60):
        a, b = (drawn(generator, 5, 0.003, slow=one, common=0.0) for one in ([], slow))
        found = judge(a, b, 0.02).signatures
        wrong += any(one.op in allowed for one in found.slower)
        assert sum(one.change > 1 for one in found.slower) == beyond
    assert wrong <= 1


def test_of_a_hundred_equal_checks_at_most_one_calls_a_count_exact():
    """Four calls that come or not by chance in each process, as a cache that is full or not: three processes
    a side agree on each of them, and on the other value on the other side, in 3 % of checks."""
    generator = np.random.default_rng(21)
    names = [f"call{at}" for at in range(4)]

    def side(count):
        draws = generator.integers(1, 3, (count, 4))
        return [Process(TEN_MS, dict(zip(names, one.tolist(), strict=True))) for one in draws]

    exact, maybe = 0, 0
    for _ in range(400):
        base, head = side(12), side(12)
        for n in LOOKS:
            found = judge(base[:n], head[:n], 0.02, share=SHARES[n])
            exact, maybe = exact + bool(found.exact), maybe + bool(found.by_chance)
    assert exact <= 4 and maybe > 20


def test_a_further_wait_in_every_process_is_exact_once_chance_is_excluded():
    def side(count, waits):
        return [Process(TEN_MS, {"cudaDeviceSynchronize": waits, "gemm": 4.0})] * count

    found = judge(side(3, 1.0), side(3, 2.0), 0.02)
    assert found.exact == [] and found.by_chance == [
        "cudaDeviceSynchronize: 1 -> 2 per step, in all processes; by chance in up to 3.1% of checks"
    ]
    assert found.by_chance[0] in sentences(found)
    assert judge(side(4, 1.0), side(4, 2.0), 0.02).exact == ["cudaDeviceSynchronize: 1 -> 2 per step"]


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


def judged(base, head):
    times = ([process.signatures_ns for process in side] for side in (base, head))
    return judge_signatures(*times, 0.02, alarms=0.005, step_ns=1e6)


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
