"""NaN on both sides, random ops and renamed modules: no all-clear by accident."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from lab.compare.same.judge import judge
from lab.compare.same.pairs import relative
from lab.compare.same.text import text
from lab.errors import UsageError
from lab.workload.recorder.format import read


def row(i, op, ck, *, sample=(1.0, 2.0), l2=3.0, nan=0, module="a", kind="op", **more):
    found = {"i": i, "op": op, "dtype": "float32", "shape": [64], "ck": ck, "l2": l2, "absmax": l2}
    found |= {"sample_at": [0, 1], "sample": list(sample), "nan": nan, "inf": 0, "kind": kind, "phase": "fwd"}
    return {**found, "module": module, **more}


def spread(count, off):
    return {"sample": [1.0 + off * (-1) ** k for k in range(count)], "sample_at": list(range(count))}


def recording(path, rows):
    lines = [{"meta": {"format": 1, "checksum": "mix64", "level": "op"}}, *rows, {"end": {"rows": len(rows)}}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return read(path)


def with_nan(path, ck):
    return recording(path, [row(0, "aten.mm", "1"), row(1, "aten.add", ck, l2=None, nan=3)])


def test_a_difference_beside_nan_in_both_runs_is_no_noise(tmp_path):
    a, b = with_nan(tmp_path / "a", "2"), with_nan(tmp_path / "b", "3")
    floor = recording(
        tmp_path / "f",
        [row(0, "aten.mm", "9", sample=(1.0, 2.001)), row(1, "aten.add", "8", sample=(1.0, 2.001))],
    )
    found = judge(a, b, [floor], None)
    assert (found.outcome, found.masked, found.not_finite) == ("undecided", 1, 1)
    assert "NaN or infinity in both runs" in found.reason


def test_nan_in_both_runs_is_said_though_bits_are_equal(tmp_path):
    a, b = with_nan(tmp_path / "a", "2"), with_nan(tmp_path / "b", "2")
    found = judge(a, b, [], None)
    assert (found.outcome, found.masked, found.not_finite) == ("same bits", 0, 1)
    assert "! 1 output with NaN or infinity in both runs" in text(found, a, b, 5)


def test_a_random_op_that_differs_first_is_named_as_such(tmp_path):
    def drawn(path, ck, values):
        rows = [row(0, "aten.mm", "1"), row(1, "aten.bernoulli_.float", ck, sample=values)]
        return recording(path, rows)

    found = judge(drawn(tmp_path / "a", "2", (0, 1)), drawn(tmp_path / "b", "3", (1, 0)), [], None)
    assert found.outcome == "undecided" and "random (aten.bernoulli_.float)" in found.reason
    floors = [drawn(tmp_path / f"f{at}", "2", (0, 1 + at)) for at in (1e-9, 2e-9)]
    noisy = [
        one._replace(rows=(*one.rows[:1], msgspec.structs.replace(one.rows[1], ck="9"))) for one in floors
    ]
    found = judge(drawn(tmp_path / "a", "2", (0, 1)), drawn(tmp_path / "b", "3", (1, 0)), noisy, None)
    assert (found.outcome, found.values.beyond) == ("undecided", 1) and "seed both runs alike" in found.reason


def renamed(path, names, *, ck="3", ops=("aten.mm", "aten.gelu")):
    rows = [row(0, f"{name}.weight", str(at), kind="weight", module="") for at, name in enumerate(names)]
    rows += [row(at, op, ck, module=name) for at, (op, name) in enumerate(zip(ops, names, strict=True))]
    return recording(path, rows)


def test_renamed_modules_of_the_same_program_pair_by_their_order(tmp_path):
    a, b = renamed(tmp_path / "a", ("old", "head")), renamed(tmp_path / "b", ("new", "tail"))
    found = judge(a, b, [], None)
    assert (found.outcome, found.paired, found.renamed, found.n_only_a) == ("same bits", 4, 4, 0)
    assert "have other names in B (4 outputs)" in text(found, a, b, 5)
    other = renamed(tmp_path / "c", ("new", "tail"), ops=("aten.gelu", "aten.mm"))
    assert judge(a, other, [], None).outcome in ("not comparable", "undecided")


def test_at_the_level_of_modules_other_ops_are_no_reason_to_doubt(tmp_path):
    def run(path, op, ck="5"):
        rows = [
            row(0, op, ck),
            row(1, "Linear", "7", kind="module"),
            row(1, "Net", "8", kind="module", module=""),
        ]
        return recording(path, rows)

    a, b = run(tmp_path / "a", "aten.sdpa"), run(tmp_path / "b", "aten.bmm", ck="6")
    assert judge(a, b, [], None).outcome == "undecided"
    found = judge(a, b, [], None, level="module")
    assert (found.outcome, found.level, found.paired) == ("same bits", "module", 2)
    assert judge(a, b, [], None, level="ends").paired == 1
    bare = recording(tmp_path / "c", [row(0, "aten.sdpa", "5")])
    assert judge(bare, bare, [], None, level="module").outcome == "not comparable"  # nothing was compared


@pytest.mark.parametrize(("times", "outcome"), [(9.0, "within noise"), (12.0, "differs"), (25.0, "differs")])
def test_an_output_is_beyond_the_noise_from_ten_times_its_floor(tmp_path, times, outcome):
    def run(name, ck, off):
        return recording(tmp_path / name, [{**row(at, "aten.mm", ck), **spread(16, off)} for at in range(3)])

    found = judge(run("a", "1", 0.0), run("b", "2", 1e-5 * times), [run("f", "3", 1e-5)], None)
    assert found.outcome == outcome and found.values.beyond == (3 if outcome == "differs" else 0)
    assert found.values.largest_ratio == pytest.approx(times, rel=0.01)


@pytest.mark.parametrize(("blind", "outcome"), [(2, "within noise"), (3, "undecided")])
def test_a_tenth_of_outputs_that_nothing_could_be_seen_in_is_the_most_a_verdict_bears(
    tmp_path, blind, outcome
):
    def run(name, ck, off):
        offs = [off if at < blind else 1e-6 * off for at in range(20)]
        rows = [{**row(at, "aten.mm", ck), **spread(16, off)} for at, off in enumerate(offs)]
        return recording(tmp_path / name, rows)

    found = judge(run("a", "1", 0.0), run("b", "2", 0.1), [run("f", "3", 0.12)], None)
    assert (found.outcome, found.blind) == (outcome, blind)


def test_a_floor_as_large_as_the_output_is_no_all_clear(tmp_path):
    """The program returns zeros; its noise floor, of an unstable model, is 12 %."""

    def run(name, size, ck, kind="module"):
        rows = [row(0, "aten.mm", "1")] * 12 + [
            row(1, "Net", ck, kind=kind, sample=(size, 2 * size), l2=size)
        ]
        return recording(tmp_path / name, rows)

    for kind, outcome in (("module", "undecided"), ("grad", "within noise")):
        a, b, floor = run("a", 1.0, "2", kind), run("b", 0.0, "3", kind), run("f", 1.12, "4", kind)
        found = judge(a, b, [floor], None)
        assert (found.outcome, found.blind, found.values.beyond) == (outcome, 1, 0)
        assert "! 1 output with a noise floor above 5%: any change of them would pass" in text(found, a, b, 5)


def test_equal_checksums_beside_other_values_are_no_equal_bits(tmp_path):
    a = recording(tmp_path / "a", [row(0, "aten.mm", "1"), row(1, "aten.add", "2")])
    b = recording(tmp_path / "b", [row(0, "aten.mm", "1"), row(1, "aten.add", "2", l2=4.5, sample=(2, 3))])
    assert judge(a, b, [], None).outcome != "same bits"
    nan = recording(tmp_path / "c", [row(0, "aten.mm", "1"), row(1, "aten.add", "2", nan=1)])
    assert judge(a, nan, [], None).outcome == "differs"
    assert judge(a, a, [], None).outcome == "same bits"


@pytest.mark.parametrize(("times", "named"), [(49, []), (51, ["B"])])
def test_an_own_error_stands_out_from_fifty_times_its_peers(tmp_path, times, named):
    def run(name, ck, last):
        errors = [1e-6, 1e-6, last]
        return recording(
            tmp_path / name,
            [row(at, "aten.mm", f"{ck}{at}", local_rel=error) for at, error in enumerate(errors)],
        )

    found = judge(run("a", "1", 1e-6), run("b", "2", times * 1e-6), [], None)
    assert [place.side for place in found.made_by] == named


@pytest.mark.parametrize(("partners", "outcome"), [(4, "not comparable"), (5, "undecided")])
def test_half_of_the_outputs_need_a_partner(tmp_path, partners, outcome):
    a = recording(tmp_path / "a", [row(at, f"aten.op{at}", "1", shape=[at]) for at in range(10)])
    b = recording(tmp_path / "b", [row(at, f"aten.op{at}", "1", shape=[at]) for at in range(partners)])
    assert judge(a, b, [], None).outcome == outcome


@pytest.mark.parametrize(("share", "refused"), [(0.9e-3, False), (1.1e-3, True)])
def test_a_floor_whose_draws_differ_by_more_than_rounding_is_refused(tmp_path, share, refused):
    def run(name, ck, off):
        values = (1 + off, 2 * (1 + off))
        return recording(tmp_path / name, [row(0, "aten.mm", "1"), row(1, "aten.rand", ck, sample=values)])

    a, floor = run("a", "2", 0.0), run("f", "3", share)
    if refused:
        with pytest.raises(UsageError, match="drew other random numbers"):
            judge(a, a, [floor], None)
    else:
        assert judge(a, a, [floor], None).outcome == "same bits"


@pytest.mark.parametrize(("elements", "outcome"), [(7, "within noise"), (8, "differs")])
def test_an_output_of_few_elements_has_at_least_the_median_floor(tmp_path, elements, outcome):
    """Its own floor of 1e-7 is luck: 1e-4 is the floor of the others."""

    def run(name, ck, small, large):
        rows = [{**row(at, "aten.mm", ck), **spread(16, large)} for at in range(4)]
        return recording(tmp_path / name, [*rows, {**row(4, "aten.sum", ck), **spread(elements, small)}])

    found = judge(run("a", "1", 0, 0), run("b", "2", 1e-5, 1e-4), [run("f", "3", 1e-7, 1e-4)], None)
    assert found.outcome == outcome


@pytest.mark.parametrize(("floor", "blind"), [(0.049, 0), (0.051, 1)])
def test_a_floor_above_a_twentieth_sees_nothing(tmp_path, floor, blind):
    def run(name, ck, off):
        return recording(tmp_path / name, [{**row(0, "aten.mm", ck), **spread(16, off)}])

    found = judge(run("a", "1", 0), run("b", "2", 0.01), [run("f", "3", floor)], None)
    assert found.blind == blind


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([3.0, 4.0, None], [3.0, 4.5, None], 0.1),
        ([1.0, None], [1.0, 2.0], math.inf),
        ([0.0], [0.0], 0.0),
        ([0.0], [1.0], math.inf),
        ([None], [None], 0.0),
        ([3e-200, 4e-200], [3e-200, 4.5e-200], 0.1),  # whose squares are 0
    ],
)
def test_relative_is_l2_over_l2_and_nan_on_one_side_is_infinite(a, b, expected):
    assert relative(a, b) == pytest.approx(expected)
