"""The parts of a change, from which size on one is named, and from how much common work two recordings are
comparable."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from lab.compare.diff.comparison import compare
from lab.compare.diff.judge import BELOW, ONE_PAIR, judge_rows, scatter_floor, times_beyond_error
from lab.compare.diff.split import PARTS, parts_of, split
from tests.compare.made import trace

KEY = ("aten::mm", "[[64,64]]", "float", "gemm")


def rows_of(changes, ns=50_000.0):
    """One kernel per change, each of so many ns per unit."""
    keys = [("aten::op", "", "", f"k{index}") for index in range(len(changes))]
    a = dict.fromkeys(keys, (1.0, ns))
    return split(a, {key: (1.0, ns * (1 + change)) for key, change in zip(keys, changes, strict=True)})


@pytest.mark.parametrize(
    ("change", "ns", "confidence"),
    [
        (0.029, 50_000.0, BELOW),
        (0.031, 50_000.0, ONE_PAIR),
        (-0.031, 50_000.0, ONE_PAIR),
        (0.09, 10_900.0, BELOW),  # 0.98 us
        (0.09, 11_300.0, ONE_PAIR),  # 1.02 us
    ],
)
def test_a_duration_is_named_beyond_3_percent_and_a_microsecond(change, ns, confidence):
    rows = rows_of([change], ns)
    assert judge_rows(rows) == 0.03 and rows[0].confidence == confidence


@pytest.mark.parametrize(
    ("count", "scatter", "ns", "floor"),
    [
        (8, 0.005, 50_000.0, 5 * 1.4826 * 0.005 * (1 + 6 / 8)),
        (20, 0.005, 50_000.0, 5 * 1.4826 * 0.005 * (1 + 6 / 20)),
        (6, 0.005, 50_000.0, 0.03),  # too few to tell
        (20, 0.005, 9_900.0, 0.03),  # too short to tell
        (20, 0.05, 50_000.0, 0.10),  # above, kernels do not scatter: they changed
    ],
)
def test_the_floor_follows_the_scatter_of_long_kernels(count, scatter, ns, floor):
    rows = rows_of([scatter * (-1) ** index for index in range(count)], ns)
    assert scatter_floor(rows) == pytest.approx(floor)


@pytest.mark.parametrize(("change_us", "named"), [(50.0, []), (52.0, ["idle"])])
def test_idle_time_is_named_from_a_p_of_a_500th_on(change_us, named):
    """Steps that scatter by 25 us around their mean: p is 0.0022 and 0.0016."""

    def side(mean_us):
        times = {name: np.zeros(8) for name in ("exposed_comm", "exposed_copy")}
        times |= {"idle": 1000 * (mean_us + 25 * (-1.0) ** np.arange(8)), "span": np.full(8, 1e6)}
        return SimpleNamespace(times_ns=times, mean_ns=lambda name: float(times[name].mean()))

    assert times_beyond_error(side(100.0), side(100.0 + change_us)) == named


@pytest.mark.parametrize(("common_us", "comparable"), [(49.0, False), (51.0, True)])
def test_half_of_the_gpu_time_has_to_be_common_work(tmp_path, common_us, comparable):
    dims = [[64, 64]]
    sides = [
        [("aten::mm", dims, "gemm", common_us), (f"aten::{name}", dims, name, 100 - common_us)]
        for name in ("exp", "sum")
    ]
    a, b = (trace(tmp_path / f"{index}.json", [step] * 4) for index, step in enumerate(sides))
    assert compare(a, b).shown.comparable is comparable


@pytest.mark.parametrize(("with_op", "left_out"), [(2, True), (3, False)])
def test_ops_are_compared_where_more_than_a_twentieth_of_the_launches_have_one(tmp_path, with_op, left_out):
    step = [("aten::mm", [[64, 64]], "gemm", 5.0)] * 40
    bare = [("", [], *launch[2:]) for launch in step[with_op:]]
    a = trace(tmp_path / "a.json", [step] * 4)
    b = trace(tmp_path / "b.json", [[*step[:with_op], *bare]] * 4)
    notes = compare(a, b).shown.notes
    assert any("B records no ops" in note for note in notes) is left_out


@pytest.mark.parametrize(("calls", "unit"), [(3, None), (4, "call of gemm")])
def test_four_calls_of_a_kernel_make_it_a_unit(tmp_path, calls, unit):
    path = trace(tmp_path / "a.json", [[("aten::mm", [[8, 8]], "gemm", 5.0)] * calls], prefix="nothing ")
    assert compare(path, path).shown.unit == unit


@pytest.mark.parametrize(("calls", "dur_ns"), [(1, 50.0), (4, 50.0), (12, 50.0), (12, 200.0)])
def test_a_duration_is_that_of_one_call_however_often_it_runs(calls, dur_ns):
    a, b = {KEY: (4.0, 400.0)}, {KEY: (float(calls), calls * dur_ns)}
    rows = split(a, b)
    (duration,) = [row for row in rows if row.kind == "same_kernel_duration"]
    assert duration.slower == pytest.approx(dur_ns / 100 - 1)
    parts = parts_of(rows)
    assert set(parts) == set(PARTS) and sum(parts.values()) == pytest.approx(calls * dur_ns - 400)
    assert parts["count"] == pytest.approx((calls - 4) * (100 + dur_ns) / 2)


def test_half_the_duration_of_thrice_the_calls_is_said_as_half(tmp_path):
    mm = ("aten::mm", [[64, 64]], "gemm", 40.0)
    half = (*mm[:3], 20.0)
    a, b = trace(tmp_path / "a.json", [[mm] * 2] * 4), trace(tmp_path / "b.json", [[half] * 6] * 4)
    (text,) = [one.text for one in compare(a, b).shown.findings if one.kind == "same_kernel_duration"]
    assert text == "aten::mm [[64,64]]: gemm takes -50.0 % (-80.0 µs per unit)"


def test_a_kernel_without_a_name_is_not_nothing(tmp_path):
    mm = ("aten::mm", [[64, 64]], "gemm", 40.0)
    a, b = trace(tmp_path / "a.json", [[mm]] * 4), trace(tmp_path / "b.json", [[(*mm[:2], "", 40.0)]] * 4)
    (named,) = compare(a, b).shown.findings
    assert named.text == "aten::mm [[64,64]]: gemm -> a kernel without a name (0 µs)"
