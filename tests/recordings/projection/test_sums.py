"""Sums of each range: whole numbers, copies apart from kernels."""

from __future__ import annotations

import numpy as np

from lab.recordings.capture import MEMCPY
from lab.recordings.projection import RULES, project
from tests.recordings.projection.made import call, kernel, made, named


def test_a_copy_is_an_operation_and_no_kernel():
    capture = made(
        [named("outer", 0, 100), named("inner", 10, 50), named("idle", 60, 70)],
        [call(1, 20, 30), call(2, 80, 90)],
        [kernel(1, 300, 307, kind=MEMCPY), kernel(2, 200, 220)],
    )
    projection = project(capture)
    expected = {
        "num_ops": [2, 1, 0],
        "num_kernels": [1, 0, 0],
        "op_ns": [27, 7, 0],
        "kernel_ns": [20, 0, 0],
        "first_ns": [200, 300, -1],
        "last_ns": [307, 307, -1],
    }
    for name, column in expected.items():
        found = getattr(projection.instances, name)
        assert (found.tolist(), found.dtype) == (column, np.int64), name
    same = RULES.index("same")
    assert {name: int(column[same]) for name, column in projection.coverage.as_dict().items()} == {
        "num_ops": 2,
        "num_kernels": 1,
        "op_ns": 27,
        "kernel_ns": 20,
    }
