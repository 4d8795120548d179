"""What trials decide: golden numbers of the shared table, and planted traps."""

from __future__ import annotations

import csv
from collections import Counter

import msgspec
import pytest

pytest.importorskip("numpy")
import numpy as np

from lab.rooms.trials.config import Trial
from lab.rooms.trials.decide import compared, decide
from lab.rooms.trials.sprt import Until
from tests import conftest

SHARED = conftest.SHARED / "training_numerics" / "trials.csv"


def rows(cell, verdicts, **more):
    return [
        Trial(
            cell=cell,
            trial=at,
            verdict={"F": "fail", ".": "pass", "E": "error", "-": "not run"}[one],
            order=at,
            **more,
        )
        for at, one in enumerate(verdicts)
    ]


def numbered(trials):
    """The same with trials of a cell counted on, where it was put together from parts."""
    counts = Counter()
    renumbered = []
    for trial in trials:
        renumbered.append(msgspec.structs.replace(trial, trial=counts[trial.cell]))
        counts[trial.cell] += 1
    return renumbered


def of(*cells, stop=False, until=None):
    trials = [one for cell in cells for one in cell]
    names = list(dict.fromkeys(one.cell for one in trials))
    return decide(trials, names, names[0], stop=stop, until=until)


@pytest.mark.skipif(not SHARED.exists(), reason=f"the shared recordings are not here ({SHARED})")
def test_the_shared_table_gives_its_golden_numbers():
    with SHARED.open() as file:
        trials = [
            Trial(
                cell=row["cell"],
                trial=int(row["trial"]),
                verdict=row["verdict"],
                order=int(row["order"]),
                host=row["node"],
                step_time=float(row["step_ms"]) if row["step_ms"] else None,
            )
            for row in csv.DictReader(file)
        ]
    decision = decide(
        trials, list(dict.fromkeys(one.cell for one in trials)), "baseline", stop=False, until=None
    )
    cells = {one.name: one for one in decision.cells}
    assert (cells["baseline"].fail, cells["baseline"].n, cells["baseline"].error) == (16, 39, 1)
    by = {one.cell: one for one in decision.comparisons}
    assert (by["real_fix"].p, by["real_fix"].p_corrected) == pytest.approx(
        (4.38537e-06, 1.75415e-05), rel=1e-5
    )
    assert (by["serialize"].p, by["serialize"].p_corrected) == pytest.approx(
        (4.38537e-06, 1.75415e-05), rel=1e-5
    )
    assert (by["tf32_off"].p, by["tf32_off"].p_corrected) == pytest.approx((0.229505, 0.45901), rel=1e-5)
    assert by["unset_var"].p == pytest.approx(0.639775, rel=1e-5)
    assert by["real_fix"].slowdown == pytest.approx(1.009, abs=5e-4)
    assert by["serialize"].slowdown == pytest.approx(1.273, abs=5e-4)
    assert [by[name].verdict for name in ("real_fix", "serialize", "tf32_off", "unset_var")] == [
        "fails less",
        "fails less, but slower",
        "no evidence",
        "no evidence",
    ]
    assert cells["real_fix"].high == pytest.approx(0.0925, abs=5e-5)
    assert decision.confounds.p["place"] > 0.3  # chi-squared: 0.439
    assert not decision.decided


def test_a_cell_that_only_crashes_has_no_rate_and_is_never_best():
    decision = of(rows("none", "F.F.F.F."), rows("crash", "EEEEEEEE"))
    assert decision.cells[1].rate is None and decision.cells[1].error == 8
    assert decision.comparisons[0].verdict == "no trials" and not decision.decided


def test_a_baseline_of_errors_compares_with_nothing():
    decision = of(rows("none", "EEEE"), rows("a", "...."))
    assert [(one.p, one.verdict) for one in decision.comparisons] == [(None, "no trials")]


def test_a_bad_node_is_not_a_cure():
    """9/12 against 1/12, but nearly all baseline trials ran on the node that fails."""
    bad, good = {"host": "bad"}, {"host": "good"}
    base = rows("none", "FFFFFFFFF.", **bad) + rows("none", "..", **good)
    cell = rows("a", "F.", **bad) + rows("a", "." * 10, **good)
    (one,) = of(base, cell).comparisons
    assert one.p == pytest.approx(0.002759, abs=1e-6) and one.p_by_place == pytest.approx(0.318182, abs=1e-6)
    assert one.verdict == "confounded with the place"


@pytest.mark.parametrize("later", [True, False])
def test_cells_that_ran_one_after_the_other_are_not_compared_as_if_they_had_taken_turns(later):
    """A fault that went away by itself looks like a cure of whatever was tried next."""
    base, cell = rows("none", "F" * 20), rows("a", "." * 20)
    sides = (base, cell) if later else (cell, base)
    for at, row in enumerate([*sides[0], *sides[1]]):
        side = base if row.cell == "none" else cell
        side[row.trial] = msgspec.structs.replace(row, order=at)
    (one,) = of(base, cell).comparisons
    assert one.verdict == "confounded with time" and one.began_later == float(later)


@pytest.mark.parametrize(
    ("before", "verdict"), [(1, "confounded with time"), (2, "confounded with time"), (3, "fails less")]
)
@pytest.mark.parametrize("earlier", [False, True])
def test_nine_tenths_of_the_pairs_in_one_order_are_a_reason_of_their_own(before, verdict, earlier):
    """`before` of the cell's 20 trials began before the baseline's, the others after, or all reversed."""
    sign = -1 if earlier else 1
    base = [msgspec.structs.replace(r, order=sign * (100 + r.trial)) for r in rows("none", "F" * 20)]
    cell = [
        msgspec.structs.replace(r, order=sign * (r.trial if r.trial < before else 200 + r.trial))
        for r in rows("a", "." * 20)
    ]
    assert of(base, cell).comparisons[0].verdict == verdict


BY_ERRORS = "fails less, but ends in error more often"


@pytest.mark.parametrize(
    ("base_errors", "cell_errors", "n", "verdict"),
    [
        (0, 10, 20, BY_ERRORS),
        (0, 3, 20, BY_ERRORS),  # p 0.12: few errors show little, and a cure is a strong word
        (0, 2, 20, "fails less"),  # p 0.24
        (5, 5, 20, "fails less"),
        (0, 12, 100, BY_ERRORS),
        (0, 8, 100, "fails less"),  # not one of ten: its rate is that of the others
    ],
)
def test_errors_are_no_cure(base_errors, cell_errors, n, verdict):
    base = rows("none", "E" * base_errors + "F" * (n - base_errors))
    cell = rows("a", "E" * cell_errors + "." * (n - cell_errors))
    decision = of(base, cell)
    assert decision.comparisons[0].verdict == verdict
    assert decision.decided == (verdict == "fails less")


def test_a_cell_that_was_decided_early_is_not_confounded_with_time():
    """The baseline went on for other cells."""
    base = [msgspec.structs.replace(r, order=2 * r.trial) for r in rows("none", "F" * 200)]
    cell = [msgspec.structs.replace(r, order=2 * r.trial + 1) for r in rows("a", "." * 14)]
    (one,) = of(base, cell, stop=True).comparisons
    assert one.verdict == "fails less" and one.began_later == pytest.approx(0.5, abs=0.05)


def test_the_clock_says_when_trials_ran_and_not_the_plan():
    """A queue gave the cell's node its trials first; planned were turns."""
    clock = [f"2026-01-01T00:00:{at:02d}+00:00" for at in range(40)]
    cell = [msgspec.structs.replace(r, started_utc=clock[r.trial]) for r in rows("a", "." * 20)]
    base = [msgspec.structs.replace(r, started_utc=clock[20 + r.trial]) for r in rows("none", "F" * 20)]
    (one,) = of(base, cell).comparisons
    assert one.verdict == "confounded with time" and one.began_later == 0.0
    back = [
        msgspec.structs.replace(r, started_utc=clock[r.trial % 10]) for r in (*base, *cell)
    ]  # a clock moved
    assert of(back[:20], back[20:]).comparisons[0].verdict == "fails less"


def test_failures_that_come_late_are_seen():
    assert of(rows("none", "." * 20 + "F" * 20)).confounds.p["order"] < 0.01
    assert of(rows("none", ".F" * 20)).confounds.p["order"] > 0.5


def test_a_cell_that_fails_more_is_told_so_and_decides():
    decision = of(rows("none", "." * 20), rows("worse", "F" * 20))
    assert decision.comparisons[0].verdict == "fails more" and decision.decided


def test_with_stopping_the_p_value_holds_at_every_look_and_never_rises():
    base, cell = "FF.F.FFF.FFF.FFFFFFF", "." * 20
    seen = [of(rows("none", base[:n]), rows("a", cell[:n]), stop=True).comparisons[0].p for n in range(2, 21)]
    assert seen == sorted(seen, reverse=True) and seen[-1] < 0.001
    assert of(rows("none", base), rows("a", cell), stop=True).comparisons[0].verdict == "fails less"


def test_unbalanced_blocks_are_paired_by_their_number():
    """Errors in the baseline leave the cell's other blocks unpaired, not shifted."""
    whole = of(rows("none", "FFFF...."), rows("a", "FFFF...."), stop=True).comparisons[0]
    holes = of(rows("none", "EFFF...."), rows("a", "FFFF...."), stop=True).comparisons[0]
    assert whole.p == holes.p == 1.0


def test_until_stays_with_its_first_answer():
    ten = rows("none", "." * 10)
    assert of(ten[:9], until=Until(was=0.3, fixed=0.05)).until == "undecided"
    late = rows("none", "." * 10 + "FFFF")
    assert of(late, until=Until(was=0.3, fixed=0.05)).until == "fixed"


def test_cells_without_trials_yet_count_in_the_correction():
    base, cell = rows("none", "F" * 8), rows("a", "." * 8)
    alone = of(base, cell).comparisons[0]
    more = of(base, cell, rows("b", "-" * 8), rows("c", "E" * 8)).comparisons[0]
    assert more.p == alone.p and more.p_corrected == pytest.approx(3 * alone.p_corrected)


def test_no_false_cure_through_the_comparisons_of_a_run_that_may_stop():
    """200 matrices in which a bad node makes half of all blocks fail, looked at after every tenth block."""
    random, wrong = np.random.default_rng(3), 0
    for _ in range(200):
        rates = np.where(random.random(40) < 0.5, 0.8, 0.05)
        fails = {name: random.random(40) < rates for name in ("none", "a", "b")}
        texts = {name: "".join("F" if one else "." for one in row) for name, row in fails.items()}
        for n in range(10, 41, 10):
            trials = [row for name, text in texts.items() for row in rows(name, text[:n])]
            if any(one.verdict == "fails less" for one in compared(trials, list(texts), "none")):
                wrong += 1
                break
    assert wrong <= 10


def test_heat_that_goes_with_failures_is_seen_within_cells():
    hot = [rows("none", "F" * 10, temperature_c=80.0), rows("none", "." * 10, temperature_c=50.0)]
    trials = numbered(one for part in hot for one in part)
    assert decide(trials, ["none"], "none", stop=False, until=None).confounds.shows("temperature")
    same = decide(rows("none", "F." * 10, temperature_c=60.0), ["none"], "none", stop=False, until=None)
    assert not same.confounds.p.keys() & {"temperature", "clock"}
    # A cell that is hotter as a whole says nothing of its failures.
    cells = [*rows("none", ".F" * 10, sm_clock_mhz=1000.0), *rows("a", "F" * 20, sm_clock_mhz=500.0)]
    assert "clock" not in decide(cells, ["none", "a"], "none", stop=False, until=None).confounds.p


@pytest.mark.parametrize(("measured", "tested"), [(3, False), (4, True)])
def test_heat_is_tested_from_four_trials_on(measured, tested):
    trials = [
        msgspec.structs.replace(row, temperature_c=40.0 + row.trial if row.trial < measured else None)
        for row in rows("none", "F." * 6)
    ]
    decision = decide(trials, ["none"], "none", stop=False, until=None)
    assert ("temperature" in decision.confounds.p) == tested


def test_trials_that_all_give_the_same_numbers_under_other_seeds_are_one_trial():
    def repeats(numbers: str, seeds: str) -> bool:
        trials = [
            msgspec.structs.replace(row, judged=number.strip("-"), seed=int(seed))
            for row, number, seed in zip(rows("none", "." * len(numbers)), numbers, seeds, strict=True)
        ]
        return of(trials).cells[0].repeats

    assert repeats("aaaa", "0123")
    assert repeats("aaa", "012")  # three seeds are no accident any more, two may be
    assert not repeats("aaba", "0123") and not repeats("aaaa", "0000") and not repeats("aa", "01")
    assert not repeats("----", "0123")


def test_a_gpu_that_fails_more_often_is_named_and_a_cell_that_ran_there_is_not():
    """GPU-bad fails 15 of 20 in both cells; one cell ran there more often, and is no worse for it."""
    bad, good = {"host": "box", "gpus": "GPU-bad"}, {"host": "box", "gpus": "GPU-good"}
    base = rows("none", "FFF." * 5, **bad) + rows("none", "F" + "." * 39, **good)
    cell = rows("cell", "FFF.", **bad) + rows("cell", "." * 30, **good)
    found = of(numbered(base), numbered(cell))
    (worse,) = found.confounds.worse_places
    assert (worse.name, worse.fail, worse.n, worse.elsewhere_fail, worse.elsewhere_n) == (
        "box GPU-bad",
        18,
        24,
        1,
        70,
    )
    assert worse.p == 1 / 2000 and found.comparisons[0].verdict == "no evidence"
    # What one GPU alone ran is the cell's or the GPU's doing: nobody knows, and the GPU is not named.
    alone = of(rows("none", "." * 20, **good), rows("cell", "F" * 20, **bad))
    assert alone.confounds.worse_places == () and alone.comparisons[0].verdict == "confounded with the place"


def test_eight_places_are_named_at_most():
    """Ten bad GPUs of twenty: each place that is tested takes from what the others can show."""
    texts = {f"GPU-{at:02d}": "F" * 40 if at < 10 else "." * 40 for at in range(20)}
    trials = numbered(one for name, text in texts.items() for one in rows("none", text, gpus=name))
    assert [one.name for one in of(trials).confounds.worse_places] == [f"GPU-{at:02d}" for at in range(8)]


def test_places_that_fail_alike_are_hardly_ever_named():
    """60 boxes of 8 GPUs at one rate: at most 5 % name one, and some allowance for 60."""
    named = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        texts = ["".join(np.where(random.random(10) < 0.3, "F", ".")) for _ in range(8)]
        trials = numbered(
            one for at, text in enumerate(texts) for one in rows("none", text, gpus=f"GPU-{at}")
        )
        named += bool(of(trials).confounds.worse_places)
    assert named <= 4
