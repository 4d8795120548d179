"""GEMMs as groups of equal instances, with robust figures."""

from __future__ import annotations

import numpy as np
import pytest

from lab.rooms.sweep.gemm.variance.top import groups
from lab.stats import robust
from tests.rooms.sweep.gemm.recorded import read, two_shapes


def test_shapes_are_told_apart_though_their_kernels_have_one_name(tmp_path):
    table = groups(read(two_shapes(tmp_path))).set_index("M")
    assert table["time_diff_us"].to_dict() == {4: 3.0, 8: 60.0}
    assert table["n"].tolist() == [8, 8]
    assert (table["col_param: M"] == table.index).all() and (table["col_name_count"] == 8).all()
    assert table["col_Kernel Time (µs)_max"].tolist() == table["kernel_time_max_us"].tolist()


def test_figures_are_those_of_the_plain_statistics(tmp_path):
    table = groups(read(two_shapes(tmp_path))).set_index("M")
    for size, values in {4: [10, 11, 12, 13] * 2, 8: [30.0] * 7 + [90.0]}.items():
        row, us = table.loc[size], np.array(values, dtype=float)
        plain = (np.median(us), robust.mad(us), robust.cv(us), *np.percentile(us, [5, 95]))
        found = row[["median_us", "mad_us", "cv", "p5_us", "p95_us"]].tolist()
        assert found == pytest.approx(plain)
        assert row["excess_time_us"] == pytest.approx(np.maximum(us - np.median(us), 0).sum())
    assert table.loc[8, "step_medians_us"] == "1: 30.000; 2: 30.000"
    assert table["cold_n"].tolist() == [4, 4]
