"""Recordings of equal, noisy and faulty runs of one transformer: what is said of each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lab.compare.same.judge import judge
from lab.errors import UsageError
from lab.workload.recorder.format import read
from tests import conftest

SHARED = conftest.SHARED / "training_numerics"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")


def shared(name: str) -> Path:
    return SHARED / f"ops_{name}.jsonl.gz"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_bytes(gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows)))
    return path


@pytest.fixture(scope="module")
def base():
    return read(shared("fp32_a")), [read(shared(f"fp32_perturbed{k}")) for k in (1, 2, 3)]


def against(base, name):
    return judge(base[0], read(shared(name)), base[1], None)


def test_the_same_program_twice_is_equal_bit_by_bit(base):
    found = against(base, "fp32_a_again")
    assert (found.outcome, found.bits.compared, found.bits.differ) == ("same bits", 454, 0)


def test_two_threads_differ_in_28_outputs_and_stay_within_the_noise(base):
    found = against(base, "fp32_2threads")
    assert (found.outcome, found.bits.differ) == ("within noise", 28)
    assert (found.bits.first_place.i, found.bits.first_place.op) == (
        175,
        "aten.native_layer_norm_backward.default",
    )
    assert found.values.largest_ratio == pytest.approx(0.87, abs=0.01)
    assert found.made_by == []


def test_one_op_cut_to_10_mantissa_bits_is_the_first_named_and_the_only_culprit(base):
    found = against(base, "fault_tf32")
    assert (found.outcome, found.bits.differ) == ("differs", 325)
    assert (found.values.first_place.i, found.values.first_place.op) == (91, "aten.addmm.default")
    assert found.values.first_place.ratio == pytest.approx(1334, rel=0.01)
    assert [(one.i, one.side) for one in found.made_by] == [(91, "B")]
    assert found.made_by[0].own_error == pytest.approx(4.15e-4, rel=0.01)


def test_one_flipped_bit_outside_the_samples_is_found_by_the_ops_own_error(base):
    found = against(base, "fault_bitflip")
    assert (found.outcome, found.bits.differ, found.bits.first_place.i) == ("differs", 4, 195)
    assert (found.values.largest_ratio, found.values.first_place) == (0.0, None)
    assert [one.i for one in found.made_by] == [195]
    assert found.made_by[0].own_error == pytest.approx(1.33e-3, rel=0.01)


@pytest.mark.parametrize("name", ["bf16", "f64_ref"])
def test_another_precision_is_not_judged_by_the_floor_and_is_no_all_clear(base, name):
    found = against(base, name)
    assert (found.outcome, found.made_by) == ("undecided", [])
    assert found.bits.compared == 0
    assert found.reason.startswith("other precision (float32 against ")


def test_without_a_floor_other_bits_are_undecided_and_a_culprit_still_named(base):
    a = base[0]
    found = judge(a, read(shared("fp32_2threads")), [], None)
    assert found.outcome == "undecided" and "no noise floor" in found.reason
    found = judge(a, read(shared("fault_tf32")), [], None)
    assert (found.outcome, [one.i for one in found.made_by]) == ("differs", [91])


def test_the_float64_reference_alone_is_a_floor(base):
    a, reference = base[0], read(shared("f64_ref"))
    assert judge(a, read(shared("fault_tf32")), [], reference).values.first_place.i == 91
    assert judge(a, read(shared("fp32_2threads")), [], reference).outcome == "within noise"


def test_a_second_fault_is_not_hidden_by_what_the_first_one_left(base, tmp_path):
    """Row 195 gets the own error of the flipped bit: its output is 300 times the floor off either way."""
    rows, second = lines(shared("fault_tf32")), lines(shared("fault_bitflip"))
    at = next(k for k, row in enumerate(rows) if row.get("i") == 195)
    rows[at]["local_rel"] = second[at]["local_rel"]
    found = judge(base[0], read(write(tmp_path / "b.gz", rows)), base[1], None)
    assert [one.i for one in found.made_by] == [91, 195]


def test_swapping_the_runs_names_the_same_op_on_the_other_side(base):
    found = judge(read(shared("fault_tf32")), base[0], base[1], None)
    assert [(one.i, one.side) for one in found.made_by] == [(91, "A")]


def test_a_run_with_one_op_more_is_not_forced_onto_the_other(base, tmp_path):
    rows = lines(shared("fp32_a"))
    extra = {**rows[92], "op": "aten.extra.default", "shape": [3, 5], "sample": [], "sample_at": []}
    found = judge(base[0], read(write(tmp_path / "b.gz", [*rows[:93], extra, *rows[93:]])), base[1], None)
    assert (found.outcome, found.paired, found.n_only_a, found.n_only_b) == ("undecided", 454, 0, 1)
    assert "aten.extra.default" in found.only_b[0]


def test_an_op_of_another_name_at_the_same_place_still_pairs(base, tmp_path):
    rows = lines(shared("fp32_a"))
    for row in rows[1:]:
        row["op"] = row["op"].replace("aten.native_layer_norm.default", "aten.rms.default")
    found = judge(base[0], read(write(tmp_path / "b.gz", rows)), base[1], None)
    renamed = 3 * sum(row["op"] == "aten.rms.default" and row["out"] == 0 for row in rows[1:])
    assert found.n_only_a == found.n_only_b
    assert found.paired == 454 - found.n_only_a
    assert renamed and found.n_only_a <= renamed


def test_nan_on_one_side_is_beyond_any_floor(base, tmp_path):
    rows = lines(shared("fp32_a"))
    rows[100] |= {"nan": 3, "l2": None, "absmax": None, "ck": "0"}
    found = judge(base[0], read(write(tmp_path / "b.gz", rows)), [], None)
    assert (found.outcome, found.values.first_place.i) == ("differs", rows[100]["i"])
    assert found.values.first_place.explanation == "0 NaN and 0 infinities in A, 3 and 0 in B"


def test_a_floor_of_lower_precision_or_without_noise_and_a_reference_in_float32_are_refused(base):
    a, noisy = base[0], read(shared("fault_tf32"))
    for floors, reference, words in (
        ([read(shared("bf16"))], None, "is in bfloat16, A in float32"),
        ([read(shared("fp32_a_again"))], None, "shows no noise"),
        ([], noisy, "is not in float64"),
    ):
        with pytest.raises(UsageError, match=words):
            judge(a, noisy, floors, reference)


def test_samples_at_other_places_are_not_compared_and_the_norms_are(base, tmp_path):
    rows = lines(shared("fp32_2threads"))
    for row in rows[1:]:
        row["sample_at"] = [place + 1 for place in row["sample_at"]]
        row["sample"] = [1e6 for _ in row["sample"]]
    found = judge(base[0], read(write(tmp_path / "b.gz", rows)), base[1], None)
    assert found.bits.first_place.relative < 1e-6
    assert found.outcome == "within noise"


def test_a_coarser_row_of_the_reference_is_no_floor(base, tmp_path):
    rows, coarse = lines(shared("f64_ref")), lines(shared("bf16"))
    rows[92] = coarse[92]
    found = judge(base[0], read(shared("fp32_2threads")), [], read(write(tmp_path / "r.gz", rows)))
    assert (found.outcome, found.values.unknown) == ("undecided", 1)


def test_one_huge_element_outside_the_samples_shows_in_the_norms(base, tmp_path):
    rows = lines(shared("fp32_a"))
    rows[100] |= {"absmax": 2 * rows[100]["absmax"], "l2": 1.01 * rows[100]["l2"], "ck": "0"}
    found = judge(base[0], read(write(tmp_path / "b.gz", rows)), base[1], None)
    assert (found.values.beyond, found.values.first_place.i) == (1, rows[100]["i"])
    assert (
        found.values.first_place.explanation
        == "in the norm of all elements or the largest one, not in single ones"
    )


@pytest.mark.parametrize("floors", [[2], [3], [2, 3]])
def test_noise_is_noise_by_few_floors_too(base, floors):
    found = judge(base[0], base[1][0], [base[1][number - 1] for number in floors], None)
    assert found.bits.differ > 400
    assert (found.outcome, found.values.beyond) == ("within noise", 0)
