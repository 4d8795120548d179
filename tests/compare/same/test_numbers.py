"""ULPs and relative differences."""

from __future__ import annotations

import numpy as np
import pytest

from lab.compare.same.numbers import change, relative, ulps


@pytest.mark.parametrize(
    ("dtype", "step"),
    [("float64", 2.0**-52), ("float32", 2.0**-23), ("float16", 2.0**-10), ("bfloat16", 2.0**-7)],
)
def test_ulps_count_steps_of_the_type_also_across_zero(dtype, step):
    one = np.array([1.0])
    assert ulps(one, one, dtype) == 0
    assert ulps(one, one + 3 * step, dtype) == 3
    assert ulps(-one, -one - 3 * step, dtype) == 3
    assert ulps(np.array([0.0]), np.array([-0.0]), dtype) == 0
    least = {"float64": 5e-324, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}[dtype]
    assert ulps(np.array([least]), np.array([-least]), dtype) == 2


def test_relative_is_l2_over_l2_and_nan_on_one_side_is_infinite():
    nan = np.nan
    a = np.array([[3.0, 4.0, nan], [1.0, nan, nan], [0.0, 0.0, nan], [0.0, 0.0, nan]])
    b = np.array([[3.0, 4.5, nan], [1.0, 2.0, nan], [0.0, 0.0, nan], [0.0, 1.0, nan]])
    assert relative(a, b).tolist() == [0.1, np.inf, 0.0, np.inf]
    assert change([2.0, None, None, 0.0], [2.5, None, 1.0, 0.0]).tolist() == [0.25, 0.0, np.inf, 0.0]
