"""Causes of the whole come before rows, other work is not compared, and idle time has its own error."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from lab.compare.cli import diff as command
from lab.compare.diff.causes import common_factor, phase_alone
from lab.compare.diff.comparison import compare, compare_pair
from lab.compare.diff.groups import Group
from lab.compare.diff.judge import STEPS_VARY
from lab.compare.diff.split import split
from tests.compare.made import NOTHING, Plant, Program, layer, trace
from tests.conftest import SHARED

CASES = SHARED / "cases" / "compare"
cases = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")


def case(*names, repeats=()):
    words = [str(CASES / name) for name in names]
    for option, name in repeats:
        words += [option, str(CASES / name)]
    done = CliRunner().invoke(command, [*words, "--json"], standalone_mode=False)
    return json.loads(done.stdout), done.exception


def with_repeats(name):
    repeats = [("--repeat-a", f"uniform/a/p{i}.json.gz") for i in (1, 2)]
    repeats += [("--repeat-b", f"uniform/{name}/p{i}.json.gz") for i in (1, 2)]
    return case("uniform/a/p0.json.gz", f"uniform/{name}/p0.json.gz", repeats=repeats)[0]


@cases
@pytest.mark.parametrize(("name", "share"), [("plus2", 0.0194), ("plus5", 0.0502)])
def test_one_factor_on_all_kernels_is_one_finding_with_its_size(name, share):
    found = with_repeats(name)
    (finding,) = found["findings"]
    assert (finding["kind"], finding["confidence"]) == ("factor", "proven by repeats")
    assert "in 24 of 24 kernels alike" in finding["text"] and "over 3 and 3 processes" in finding["text"]
    total = next(total for total in found["totals"] if total["name"] == "kernel time")
    assert total["change"] == pytest.approx(share, abs=2e-4) and total["low"] > 0
    assert finding["ns"] == pytest.approx(total["head_ns"] - total["base_ns"])


@cases
def test_equal_processes_name_nothing_with_repeats_and_without():
    assert with_repeats("equal")["findings"] == []
    for pair in (("step/a", "step/b_equal"), ("idle/a", "idle/b_equal"), ("shapes/a", "shapes/b_equal")):
        found, error = case(*(f"{name}.json.gz" for name in pair))
        assert found["findings"] == found["unnamed"] == [] and error is None


@cases
def test_of_one_pair_a_small_change_of_the_whole_is_said_and_a_large_one_named():
    done = CliRunner().invoke(command, [str(CASES / f"uniform/{n}/p0.json.gz") for n in ("a", "plus2")])
    assert "kernel time +1.72%: of one pair no change of the whole below 3% is named" in done.output
    (finding,) = case("uniform/a/p0.json.gz", "uniform/plus5/p0.json.gz")[0]["findings"]
    assert finding["text"].startswith("one factor on all kernels: +4.7%")
    assert finding["confidence"] == "one pair only"


@cases
def test_repeats_of_one_side_alone_are_said_to_prove_nothing():
    repeats = [("--repeat-a", "uniform/a/p1.json.gz")]
    found, error = case("uniform/a/p0.json.gz", "uniform/plus2/p0.json.gz", repeats=repeats)
    assert error is None and any("2 and 1 processes prove nothing" in note for note in found["notes"])


@cases
def test_the_step_that_carries_the_change_is_named_by_its_number_and_rows_are_not():
    (finding,) = case("step/a.json.gz", "step/b_step25.json.gz")[0]["findings"]
    assert finding["kind"] == "steps" and finding["ns"] == pytest.approx(748_474, rel=1e-3)
    assert finding["text"].startswith("B's step 25 alone (1 of 8): kernel time +100.1%")
    (back,) = case("step/b_step25.json.gz", "step/a.json.gz")[0]["findings"]
    assert back["text"].startswith("A's step 25 alone") and back["ns"] == pytest.approx(-finding["ns"])
    (every,) = case("gate/trace_base/p0.json.gz", "gate/trace_every4th/p0.json.gz")[0]["findings"]
    assert every["text"].startswith("B's steps 13, 17, 21, every 4th alone (3 of 12): kernel time +100.0%")


@cases
def test_idle_time_is_held_against_the_error_of_its_mean():
    (finding,) = case("idle/a.json.gz", "idle/b_more.json.gz")[0]["findings"]
    assert finding["kind"] == "idle" and finding["ns"] == pytest.approx(139_099, rel=1e-3)
    assert "273.4 µs -> 412.5 µs" in finding["text"]
    found = case("gate/trace_base/p0.json.gz", "gate/trace_idle4th/p0.json.gz")[0]
    assert found["findings"] == [] and "B's steps 13, 17, 21, every 4th alone" in found["unnamed"][0]


@cases
def test_what_is_absent_is_not_compared_and_other_grids_are_other_work():
    found, error = case("shapes/a.json.gz", "shapes/b_grids_doubled.json.gz")
    assert "grids differ for 100% of their GPU time" in str(error) and error.exit_code == 1
    axes = {axis["name"]: axis for axis in found["axes"]}
    assert axes["shapes"]["state"] == axes["types"]["state"] == "not compared"
    assert (axes["grids"]["state"], axes["grids"]["share"]) == ("differs", 0.0)
    assert axes["blocks"]["state"] == axes["board"]["state"] == "same"
    assert found["findings"] == [] and found["b"]["span_ns"] == pytest.approx(12_021_700, rel=1e-3)
    slower, error = case("shapes/a.json.gz", "shapes/b_same_grids_slower.json.gz")
    assert error is None and slower["findings"][0]["text"].startswith("one factor on all kernels: +100.0%")


@cases
def test_another_rank_and_world_are_not_one_ranks_change():
    words = [str(CASES / f"shapes/{name}.json.gz") for name in ("rank3_of_8", "rank1_of_2")]
    done = CliRunner().invoke(command, words)
    reason = "rank 3 of 8 on A and rank 1 of 2 on B: not one rank's change"
    assert done.exit_code == 1 and f"Not comparable: {reason}." in done.output
    assert "span 6.039 -> 11.427 ms" in done.output and "board: NVIDIA A100-SXM4-80GB -> Tesla" in done.output


@cases
def test_of_several_ranks_the_job_is_the_headline():
    def job(name):
        return case("ranks/a", f"ranks/{name}")[0]["jobs"][0]

    swapped, mended = job("b_swapped"), job("c_mended")
    assert (swapped["rank_a"], swapped["rank_b"], swapped["alone"]) == (1, 0, None)
    assert swapped["a_ns"] == pytest.approx(1_374_600, rel=1e-4)
    assert swapped["b_ns"] == pytest.approx(1_374_400, rel=1e-4)
    assert mended["b_ns"] == pytest.approx(1_059_100, rel=1e-4) and mended["alone"] == 1
    assert (mended["rank_a"], mended["rank_b"]) == (1, None)
    done = CliRunner().invoke(command, [str(CASES / "ranks" / name) for name in ("a", "b_swapped")])
    headline = "in A rank 1 and in B rank 0 is slower than the others, and the job takes as long"
    assert done.output.index(headline) < done.output.index("Rank 1, per step")


def test_another_type_is_other_work(tmp_path):
    steps = [layer() + layer()] * 4
    a, b = trace(tmp_path / "a.json", steps), trace(tmp_path / "b.json", steps)
    b.write_text(b.read_text().replace('"float"', '"c10::BFloat16"'))
    found = compare(a, b).shown
    assert not found.comparable and found.reason.startswith("only 0% of the GPU time is in ops of types")


def test_without_a_unit_both_totals_are_printed(tmp_path):
    paths = [
        trace(tmp_path / f"{name}.json", [[("", [], kernel, us)]], prefix="nothing ")
        for name, kernel, us in (("a", "one", 30.0), ("b", "two", 45.0))
    ]
    done = CliRunner().invoke(command, [str(path) for path in paths])
    assert done.exit_code == 1 and "kernel time 0.030 -> 0.045 ms" in done.output


def test_a_kernel_beyond_the_common_factor_is_named_beside_it(tmp_path):
    rng = np.random.default_rng(2)
    program = Program(tmp_path)
    quiet = {"own": 0.0, "each": 0.0, "noise": 0.001}
    a = program.draw(rng, **quiet)
    found = compare_pair(a, program.draw(rng, Plant(factor=1.1, kernels=((11, 1.5),)), **quiet)).comparison
    factor, row = found.findings
    assert factor.kind == "factor" and factor.text.startswith("one factor on all kernels: +10.0%")
    assert row.kind == "same_kernel_duration" and "kernel_11 takes +65" in row.text


def test_where_some_kernels_alone_changed_no_factor_is_blamed(tmp_path):
    """The whole is proven to differ, and most kernels share one factor: none."""
    rng = np.random.default_rng(4)
    program = Program(tmp_path)
    plant = Plant(kernels=((9, 1.2), (11, 1.2)))
    sides = [[program.draw(rng, p, each=0.001) for _ in range(4)] for p in (NOTHING, plant)]
    found = compare_pair(sides[0][0], sides[1][0], sides[0][1:], sides[1][1:]).comparison
    assert any(total.differs for total in found.totals)
    assert {finding.kind for finding in found.findings} == {"same_kernel_duration"}
    assert {found.rows[finding.rows[0]].kernel_a for finding in found.findings} == {"kernel_9", "kernel_11"}


def test_a_factor_that_is_less_than_half_of_the_change_is_not_its_cause(tmp_path):
    """One kernel takes eight times as long, all others 2 % longer: of +20 % the factor explains a tenth."""
    rng = np.random.default_rng(9)
    program = Program(tmp_path)
    plant = Plant(factor=1.02, kernels=((2, 8.0),))
    sides = [[program.draw(rng, p, own=0.0, each=0.001) for _ in range(4)] for p in (NOTHING, plant)]
    found = compare_pair(sides[0][0], sides[1][0], sides[0][1:], sides[1][1:]).comparison
    (finding,) = found.findings
    assert finding.kind == "same_kernel_duration" and "kernel_2 takes +715" in finding.text


def test_a_slow_step_and_a_factor_are_two_causes_and_no_row(tmp_path):
    rng = np.random.default_rng(5)
    program = Program(tmp_path)
    quiet = {"own": 0.0, "each": 0.0, "noise": 0.001}
    plant = Plant(factor=1.06, every=8, every_factor=2.0)
    found = compare_pair(program.draw(rng, **quiet), program.draw(rng, plant, **quiet)).comparison
    assert [finding.kind for finding in found.findings] == ["steps", "factor"]
    assert found.findings[0].text.startswith("B's step 7 alone (1 of 8): kernel time +100.")
    assert "the other steps +6." in found.findings[0].text
    assert found.findings[1].text.startswith("one factor on all kernels: +6.0%")
    assert sum(finding.ns for finding in found.findings) == pytest.approx(found.delta_kernel_ns)


def test_grids_that_differ_under_equal_shapes_are_said(tmp_path):
    steps = [layer() + layer()] * 4
    a, b = trace(tmp_path / "a.json", steps), trace(tmp_path / "b.json", steps)
    b.write_text(b.read_text().replace('"grid": [1, 1, 1]', '"grid": [2, 1, 1]'))
    done = CliRunner().invoke(command, [str(a), str(b)])
    assert done.exit_code == 0 and "But other grids were recorded." in done.output


def test_a_row_that_scatters_from_step_to_step_is_not_named(tmp_path):
    rng = np.random.default_rng(6)
    program = Program(tmp_path, steps=5)
    quiet = {"own": 0.0, "each": 0.0, "noise": 0.001}
    a, b = program.draw(rng, **quiet), program.draw(rng, **quiet)
    wild = np.flatnonzero(program.kernel == 10)
    b.dur_ns[wild] = (b.dur_ns[wild] * np.array([1.0, 1.0, 1.02, 1.01, 1.25])).astype(np.int64)
    found = compare_pair(a, b).comparison
    assert found.findings == []
    assert [row.kernel_a for row in found.rows if row.confidence == STEPS_VARY] == ["kernel_10"]
    b.dur_ns[wild] = (a.dur_ns[wild] * np.array([1.05, 1.06, 1.05, 1.06, 1.05])).astype(np.int64)
    again = compare_pair(a, program.draw(rng, Plant(kernels=((10, 1.055),)), **quiet)).comparison
    assert ["kernel_10" in finding.text for finding in again.findings] == [True]


def sums(*durations_us, factor=1.0):
    keys = [("aten::op", "", "", f"k{index}") for index in range(len(durations_us))]
    return {key: (1.0, 1000 * us * factor) for key, us in zip(keys, durations_us, strict=True)}


def test_a_factor_needs_several_kernels_and_most_of_the_time_and_of_the_rows():
    a = sums(50, 40, 30, 20)
    rows = split(a, sums(50, 40, 30, 20, factor=1.08))
    factor = common_factor(rows, 140e3)
    assert factor.share == pytest.approx(0.08) and (factor.rows, factor.of_rows) == (4, 4)
    assert common_factor(rows, 200e3) is None, "the shared kernels are too little of the time"
    assert common_factor(rows[:2], 90e3) is None, "two kernels"
    assert common_factor(rows[:3], 120e3).rows == 3
    assert common_factor(rows, 170e3).rows == 4, "more than four fifths of the time"
    spread = split(a, sums(50 * 1.08, 40 * 1.10, 30 * 1.06, 20 * 1.08))
    assert common_factor(spread, 140e3).rows == 4, "a third of the factor apart"
    wild = split(a, sums(50 * 1.08, 40 * 1.13, 30 * 1.02, 20 * 1.08))
    assert common_factor(wild, 140e3) is None
    assert common_factor(split(a, sums(50, 40, 30, 20, factor=1.02)), 140e3) is None, "below the floor"
    assert common_factor(split(a, sums(100, 40, 30, 20)), 140e3) is None, "one long kernel"
    assert common_factor(split(a, sums(50, 48, 36, 24)), 140e3) is None, "not the longest one"


def test_few_steps_tell_nothing_of_each_other_and_small_ones_are_no_cause(tmp_path):
    for steps, factor, named in ((3, 3.0, []), (4, 3.0, ["steps"]), (8, 1.2, []), (8, 1.4, ["steps"])):
        rng = np.random.default_rng(8)
        program = Program(tmp_path, steps=steps)
        quiet = {"own": 0.0, "each": 0.0, "noise": 0.0005}
        b = program.draw(rng, Plant(every=steps, every_factor=factor), **quiet)
        found = compare_pair(program.draw(rng, **quiet), b).comparison
        kinds = [finding.kind for finding in found.findings if finding.kind == "steps"]
        assert kinds == named, (steps, factor)


def group(key, ns_a, ns_b):
    return Group(key=key, on="both", n_a=1, n_b=1, ns_a=ns_a, ns_b=ns_b, change_ns=ns_b - ns_a)


def test_one_phase_alone_is_a_cause_and_two_are_none():
    rows = split(sums(50, 40, 30), sums(80, 50, 36))
    for row in rows:
        row.confidence = "one pair only"
    groups = [group("backward", 2e5, 2.4e5), group("forward", 1e5, 1.01e5)]
    cause = phase_alone(groups, rows, 1000.0)
    assert cause.text == "the phase backward alone: kernel time +20.0%, the other phases +1.0%"
    assert cause.ns == 4e4
    assert phase_alone([groups[0], group("forward", 1e5, 1.2e5)], rows, 1000.0) is None
    assert phase_alone(groups[:1], rows, 1000.0) is None
    assert phase_alone(groups, rows[:2], 1000.0) is None
    assert phase_alone([group("backward", 2e6, 2.04e6), groups[1]], rows, 1000.0) is None
