"""Relative differences."""

from __future__ import annotations

import numpy as np

from lab.compare.same.pairs import change, relative


def test_relative_is_l2_over_l2_and_nan_on_one_side_is_infinite():
    nan = np.nan
    a = np.array([[3.0, 4.0, nan], [1.0, nan, nan], [0.0, 0.0, nan], [0.0, 0.0, nan]])
    b = np.array([[3.0, 4.5, nan], [1.0, 2.0, nan], [0.0, 0.0, nan], [0.0, 1.0, nan]])
    assert relative(a, b).tolist() == [0.1, np.inf, 0.0, np.inf]
    assert change([2.0, None, None, 0.0], [2.5, None, 1.0, 0.0]).tolist() == [0.25, 0.0, np.inf, 0.0]
