"""The parts of a change, and how a row says its size."""

from __future__ import annotations

import pytest

from lab.compare.diff.comparison import compare
from lab.compare.diff.split import PARTS, parts_of, split
from tests.compare.made import trace

KEY = ("aten::mm", "[[64,64]]", "float", "gemm")


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
